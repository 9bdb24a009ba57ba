"""Simulated launches that take time on a clock of their own, which is also the clock of the campaign."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.catalog.measuring import Measuring
from scalescope.cli import app
from scalescope.experiment.explanations import Phase
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome, Watcher
from scalescope.results.run_folder import RunFolder
from scalescope.studies import campaign, prepared
from tests.simulated.launcher import CostModel, FakeLauncher

LAUNCH_S = 10.0
Factors = Mapping[tuple[tuple[str, object], ...], float]


class Clock:
    """A clock that only launches move; `launch` is an outcome for a fake launcher."""

    def __init__(self, launch_s: Callable[[Trial], float] = lambda trial: LAUNCH_S) -> None:
        self.now_s = 1000.0
        self._launch_s = launch_s

    def launch(self, trial: Trial, launch: int) -> Outcome | None:
        self.now_s += self._launch_s(trial)
        return None


def campaign_clock(monkeypatch: pytest.MonkeyPatch, clock: Any) -> Any:
    """The clock, which the command line, planning and the campaign read from now on."""
    for module in (campaign, prepared, app):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    return clock


class TimedLauncher(FakeLauncher):
    """Launches that take time, and are ended at their deadline."""

    def __init__(self, factors: Factors, launch_s: Callable[[Trial], float] = lambda trial: LAUNCH_S) -> None:
        super().__init__(CostModel(launch_noise=0.004, factors=dict(factors)))
        self._launch_s = launch_s
        self.now_s = 1000.0

    def launch(
        self,
        trial: Trial,
        launch: int,
        folder: RunFolder,
        limits: Measuring,
        watcher: Watcher,
        *,
        deadline: float | None = None,
        phases: Sequence[Phase] = (),
    ) -> Outcome:
        ends_s = self.now_s + self._launch_s(trial)
        if deadline is not None and ends_s > deadline:
            self.now_s = max(self.now_s, deadline)
            return Outcome(status="interrupted", reason="the budget is spent", stopped_by="budget")
        self.now_s = ends_s
        return super().launch(trial, launch, folder, limits, watcher, deadline=deadline)
