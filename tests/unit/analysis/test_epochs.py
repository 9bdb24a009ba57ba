"""Epochs: times of the slowest rank, accuracies of rank 0, medians over launches."""

import dataclasses

from scalescope.analysis.configurations import configurations
from scalescope.analysis.epochs import Epoch, epochs_of, has_epochs, over_launches
from scalescope.results.result import Result
from tests.builders.results import make_result, make_trial


def result_with(times: list[list[float]], accuracies: list[float] | None = None, launch: int = 0) -> Result:
    """A launch of ranks with these epoch times, and accuracies only rank 0's of which count."""
    made = make_result(make_trial(world_size=len(times)), [[0.1] * 10] * len(times), launch=launch)
    ranks = []
    for rank, record in enumerate(made.ranks):
        samples = {**record.samples, "epoch_time_s": times[rank]}
        if accuracies is not None:
            rank_accuracies = [value if rank == 0 else 0.0 for value in accuracies]
            samples |= {
                "train_accuracy": [0.9] * len(rank_accuracies),
                "validation_accuracy": rank_accuracies,
            }
        ranks.append(dataclasses.replace(record, samples=samples))
    return dataclasses.replace(made, ranks=ranks)


def test_an_epoch_takes_as_long_as_its_slowest_rank_and_accuracies_are_rank_0s() -> None:
    first, second = epochs_of(result_with([[1.0, 2.0], [1.5, 1.8]]))
    assert (first.number, first.time_s) == (1, 1.5)
    assert (second.number, second.time_s) == (2, 2.0)
    assert first.validation_accuracy is None
    epochs = epochs_of(result_with([[1.0, 2.0], [1.0, 2.0]], [0.5, 0.75]))
    assert [epoch.validation_accuracy for epoch in epochs] == [0.5, 0.75]
    assert [epoch.train_accuracy for epoch in epochs] == [0.9, 0.9]


def test_launches_are_summarised_by_their_medians() -> None:
    results = [
        result_with([[time]], [accuracy], launch)
        for launch, (time, accuracy) in enumerate([(1.0, 0.5), (9.0, 0.7), (2.0, 0.6)])
    ]
    (configuration,) = configurations(results)
    assert configuration.epochs == (Epoch(number=1, time_s=2.0, train_accuracy=0.9, validation_accuracy=0.6),)
    assert over_launches([]) == ()


def test_epochs_are_reported_where_there_are_several_or_an_evaluation() -> None:
    assert not has_epochs(epochs_of(result_with([[1.0]])))
    assert has_epochs(epochs_of(result_with([[1.0, 1.0]])))
    assert has_epochs(epochs_of(result_with([[1.0]], [0.5])))
    assert epochs_of(make_result(make_trial(), [[0.1] * 10])) == ()


def test_tokens_are_those_of_a_texts_length() -> None:
    texts = make_trial(workload="transformer", max_seq_len=64)
    (configuration,) = configurations([make_result(texts, [[0.1] * 10])])
    assert configuration.tokens_per_s == configuration.samples_per_s.value * 64
    (vectors,) = configurations([make_result(make_trial(), [[0.1] * 10])])
    assert vectors.tokens_per_s is None
