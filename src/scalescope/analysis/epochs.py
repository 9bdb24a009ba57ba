"""Epochs: how long each took and how often the model was right after it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.statistics import median_of_known
from scalescope.results.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One epoch of a launch, or its medians over launches; accuracies where they were measured."""

    number: int
    time_s: float
    train_accuracy: float | None = None
    validation_accuracy: float | None = None


def epochs_of(result: Result) -> tuple[Epoch, ...]:
    """The epochs of one launch: as slow as their slowest rank, as accurate as all ranks together counted.

    Every rank has the same counts, so rank 0's are taken. Empty for runs that did not record epochs.
    """
    times = [record.samples.get("epoch_time_s", []) for record in result.ranks]
    first = result.ranks[0].samples if result.ranks else {}
    return tuple(
        Epoch(
            number=number + 1,
            time_s=max(ranks),
            train_accuracy=_at(first.get("train_accuracy", []), number),
            validation_accuracy=_at(first.get("validation_accuracy", []), number),
        )
        for number, ranks in enumerate(zip(*times, strict=False))
    )


def over_launches(launches: Sequence[Sequence[Epoch]]) -> tuple[Epoch, ...]:
    """The medians of each epoch over launches."""
    return tuple(
        Epoch(
            number=same[0].number,
            time_s=statistics.median(epoch.time_s for epoch in same),
            train_accuracy=median_of_known(epoch.train_accuracy for epoch in same),
            validation_accuracy=median_of_known(epoch.validation_accuracy for epoch in same),
        )
        for same in zip(*launches, strict=False)
    )


def has_epochs(epochs: Sequence[Epoch]) -> bool:
    """Whether epochs add to the summary: there are several, or accuracy was measured after one."""
    return len(epochs) > 1 or any(epoch.validation_accuracy is not None for epoch in epochs)


def _at(values: Sequence[float], number: int) -> float | None:
    return values[number] if number < len(values) else None
