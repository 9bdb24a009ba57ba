"""Campaigns made up for the display: trials, results and a clock that is set by hand."""

import dataclasses
from typing import Any

from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from tests.builders.results import make_result, make_trial

ONE_RANK, TWO_RANKS = (make_trial(world_size=ranks, strategy="ddp") for ranks in (1, 2))
SILENT = make_trial(world_size=2, strategy="ddp", without_communication=True)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def ended(trial: Trial, launch: int = 0, seconds: float = 2.0, **changes: Any) -> Result:
    """A launch of ten steps of 100 ms."""
    result = make_result(trial, [[0.1] * 10] * trial.world_size, launch=launch)
    return dataclasses.replace(result, duration_s=seconds, **changes)


def launches_of(*trials: Trial, repeats: int = 3) -> list[tuple[Trial, int]]:
    return [(trial, launch) for launch in range(repeats) for trial in trials]
