"""How a pipeline cuts a model: balanced, every stage with parameters, nothing shared."""

from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn

from scalescope.catalog.strategies.pipeline import balanced_cuts
from scalescope.errors import BadInput
from scalescope.worker.strategies.pipeline import (
    _sample_inputs,
    blocks_of,
    costs_of,
    split,
)
from scalescope.worker.training.step import Data


def _largest(costs: list[int], cuts: list[int]) -> int:
    return max(sum(costs[low:high]) for low, high in pairwise(cuts))


@pytest.mark.parametrize(
    ("costs", "count", "cuts"),
    [
        ([1, 1, 1, 1], 2, [0, 2, 4]),
        ([9, 1, 1, 1], 2, [0, 1, 4]),
        ([1, 1, 1, 9], 2, [0, 3, 4]),
        ([1, 2, 3, 4, 5], 3, [0, 3, 4, 5]),
        ([0, 0, 0], 3, [0, 1, 2, 3]),
        ([5], 1, [0, 1]),
    ],
)
def test_cuts(costs: list[int], count: int, cuts: list[int]) -> None:
    assert balanced_cuts(costs, count) == cuts


@settings(max_examples=30)
@given(some.lists(some.integers(0, 100), min_size=1, max_size=8), some.data())
def test_no_other_cuts_are_better(costs: list[int], data: some.DataObject) -> None:
    count = data.draw(some.integers(1, len(costs)))
    cuts = balanced_cuts(costs, count)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, len(costs), count + 1)
    assert all(low < high for low, high in pairwise(cuts))
    others = combinations(range(1, len(costs)), count - 1)
    assert _largest(costs, cuts) == min(_largest(costs, [0, *inner, len(costs)]) for inner in others)


def test_blocks_without_parameters_stay_with_their_neighbours() -> None:
    blocks = [nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Softmax(dim=1)]
    first, second = split(blocks, costs_of(blocks, None), 2)
    assert [*first, *second] == blocks
    assert (len(first), len(second)) == (3, 3)


def test_cost_is_computation_where_it_can_be_counted() -> None:
    blocks = [nn.Embedding(1000, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)]
    words = torch.zeros(2, 64, dtype=torch.long)
    by_size = split(blocks, costs_of(blocks, None), 2)
    by_work = split(blocks, costs_of(blocks, words), 2)
    assert [len(stage) for stage in by_size] == [1, 3]  # the table is large, but reading it is cheap
    assert [len(stage) for stage in by_work] == [2, 2]


def test_counting_leaves_no_trace() -> None:
    blocks = [nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)]
    blocks[1].eval()
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    costs_of(blocks, torch.randn(2, 3, generator=torch.Generator()))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [block.training for block in blocks] == [True, False, True]
    assert blocks[1].running_mean.tolist() == [0.0] * 3
    assert all(parameter.grad is None for block in blocks for parameter in block.parameters())


def test_models_that_cannot_be_cut_are_refused() -> None:
    blocks = [nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)]
    with pytest.raises(BadInput, match=r"3 blocks .* model has 2"):
        split(blocks, [1, 0, 1], 3)
    shared = [nn.Linear(2, 2), nn.Linear(2, 2)]
    shared[1].weight = shared[0].weight
    with pytest.raises(BadInput, match="share parameters"):
        split(shared, [1, 1], 2)
    with pytest.raises(BadInput, match=r"as_sequential.* got Linear"):
        blocks_of(nn.Linear(2, 2))


def test_a_model_may_define_its_sequence_of_layers() -> None:
    class Unrolled(nn.Module):
        """A model with a loop of its own."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(2, 2), nn.ReLU()])

        def as_sequential(self) -> nn.Sequential:
            return nn.Sequential(*self.layers)

    model = Unrolled()
    assert blocks_of(model) == list(model.layers)


def test_samples_to_look_at_are_fetched_as_the_loader_would() -> None:
    """A data set that hands out whole batches has a collate that leaves them as they are."""

    class Whole:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
            return torch.full((3,), number), number

        def __getitems__(self, numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.tensor(numbers)[:, None].expand(-1, 3), torch.tensor(numbers)

    whole = _sample_inputs(Data(samples=Whole(), collate=lambda batch: batch), torch.device("cpu"))
    single = _sample_inputs(Data(samples=[(torch.zeros(3), 0), (torch.ones(3), 1)]), torch.device("cpu"))
    assert whole is not None and whole.tolist() == [[0] * 3, [1] * 3]
    assert single is not None and single.tolist() == [[0] * 3, [1] * 3]
