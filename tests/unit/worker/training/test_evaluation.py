"""Evaluation: right answers are counted once each, in batches no larger than those of the training."""

import torch
from torch import Tensor, nn

from scalescope.worker.process.group import Group
from scalescope.worker.process.position import Position
from scalescope.worker.text import ClassifiedTexts, ContinuedTexts
from scalescope.worker.training.evaluation import Evaluation
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.step import Data, Workload
from tests.builders.results import make_trial

CPU = torch.device("cpu")


class Echo(nn.Module):
    """Answers each token with the class of its id; remembers how large the batches were."""

    def __init__(self, classes: int, *, per_position: bool = False) -> None:
        super().__init__()
        self.batches: list[int] = []
        self._classes = classes
        self._per_position = per_position

    def forward(self, tokens: Tensor) -> Tensor:
        self.batches.append(len(tokens))
        chosen = tokens if self._per_position else tokens[:, 0]
        return nn.functional.one_hot(chosen.long(), self._classes).float()


def evaluate(model: nn.Module, data: Data, *, rank: int = 0, world_size: int = 1) -> Measurements:
    workload = Workload(model=model, data=data, loss=nn.functional.cross_entropy)
    group = Group(rank=rank, world_size=world_size, joined=False)
    measurements = Measurements()
    evaluation = Evaluation(workload, make_trial(batch_size=4), group, CPU)
    evaluation.run(Position(None, rank, world_size), measurements)
    return measurements


def classified(labels: list[int]) -> ClassifiedTexts:
    """Ten samples of class 0, 1, 2 ... whose labels may differ."""
    return ClassifiedTexts(torch.arange(len(labels), dtype=torch.int32).view(-1, 1), torch.tensor(labels))


def as_it_is(batch: object) -> object:
    return batch


def test_accuracies_are_shares_of_right_answers() -> None:
    model = Echo(10)
    validation = classified([0, 1, 2, 0, 0, 0, 0, 0, 0, 0])
    data = Data(samples=classified(list(range(10))), validation=validation, collate=as_it_is)
    samples = evaluate(model, data)
    assert samples.samples["train_accuracy"] == [1.0]
    assert samples.samples["validation_accuracy"] == [0.3]
    assert len(samples.samples["evaluation_time_s"]) == 1
    assert model.batches == [4, 4, 2, 4, 4, 2]
    assert model.training


def test_single_samples_are_collated_where_a_data_set_has_no_batches() -> None:
    pairs = [(torch.tensor([number]), torch.tensor(number % 2)) for number in range(4)]
    samples = evaluate(Echo(10), Data(samples=pairs, validation=pairs))
    assert samples.samples["validation_accuracy"] == [0.5]


def test_every_rank_makes_as_many_passes_and_counts_its_own_alone() -> None:
    """Three samples over two ranks: the second has one, and asks as often as the first."""
    validation = classified([0, 9, 2])
    data = Data(samples=validation, validation=validation, collate=as_it_is)
    models = [Echo(10), Echo(10)]
    accuracies = [
        evaluate(model, data, rank=rank, world_size=2).samples["validation_accuracy"]
        for rank, model in enumerate(models)
    ]
    assert accuracies == [[1.0], [0.0]]  # without a group nothing is added up
    assert len(models[0].batches) == len(models[1].batches)


def test_positions_without_a_target_are_not_asked() -> None:
    """Each token repeats: `2 2 3` is right once and wrong once; padding counts nowhere."""
    tokens = torch.tensor([[2, 2, 3, 0, 0]], dtype=torch.int32)
    data = Data(samples=ContinuedTexts(tokens), validation=ContinuedTexts(tokens), collate=as_it_is)
    samples = evaluate(Echo(10, per_position=True), data)
    assert samples.samples["validation_accuracy"] == [0.5]
