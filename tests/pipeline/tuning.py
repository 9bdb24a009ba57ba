"""What the tests of `tune` share: a cost model that knows the truth, a clock, and what a run says."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.catalog.measuring import Measuring
from scalescope.experiment.trial import Trial
from scalescope.launch.fake import CostModel, FakeLauncher
from scalescope.launch.launcher import Outcome, Watcher
from scalescope.results.result import Result
from scalescope.results.run import load_run
from scalescope.results.run_folder import RunFolder
from scalescope.studies import campaign
from scalescope.studies.study import Report
from tests.builders.studies import tune

from .recording import RecordingWatcher, ask

BF16, JIT, FUSED = ("precision", "bf16"), ("jit", True), ("fused_optimizer", True)
HOOK = ("comm_hook", "fp16")
Factors = dict[tuple[tuple[str, object], ...], float]
Outcomes = Callable[[Trial, int], Outcome | None]
HELPING: Factors = {(BF16,): 0.7, (JIT,): 0.8, (HOOK,): 0.9, (BF16, HOOK): 1.3, (FUSED,): 1.5}
LEVERS = ("precision", "jit", "comm_hook", "fused_optimizer")
LAUNCH_S = 10.0


def no_outcome(trial: Trial, launch: int) -> Outcome | None:
    return None


def has(trial: Trial, *pairs: tuple[str, object]) -> bool:
    """Whether a trial has these settings, and communicates."""
    return not trial.settings["without_communication"] and all(
        trial.settings[name] == value for name, value in pairs
    )


def is_baseline(trial: Trial) -> bool:
    plain: tuple[tuple[str, object], ...] = (
        ("precision", "fp32"),
        ("jit", False),
        ("comm_hook", "none"),
        ("fused_optimizer", False),
    )
    return has(trial, *plain)


class TimedLauncher(FakeLauncher):
    """Launches that take time on a clock of their own, and are ended at their deadline."""

    def __init__(
        self,
        factors: Factors,
        outcomes: Outcomes = no_outcome,
        launch_s: Callable[[Trial], float] = lambda trial: LAUNCH_S,
        noise: float = 0.004,
    ) -> None:
        super().__init__(CostModel(launch_noise=noise, factors=factors), outcomes=outcomes)
        self._launch_s = launch_s
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def launch(
        self,
        trial: Trial,
        launch: int,
        folder: RunFolder,
        limits: Measuring,
        watcher: Watcher,
        *,
        deadline: float | None = None,
    ) -> Outcome:
        ends_s = self.now_s + self._launch_s(trial)
        if deadline is not None and ends_s > deadline:
            self.now_s = max(self.now_s, deadline)
            return Outcome(status="interrupted", reason="the budget is spent", stopped_by="budget")
        self.now_s = ends_s
        return super().launch(trial, launch, folder, limits, watcher, deadline=deadline)


def timed(monkeypatch: pytest.MonkeyPatch, factors: Factors, **options: Any) -> TimedLauncher:
    """A launcher whose clock is the campaign's."""
    launcher = TimedLauncher(factors, **options)
    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=launcher.monotonic))
    return launcher


def tuned(
    factors: Factors,
    *levers: str,
    launcher: FakeLauncher | None = None,
    watcher: RecordingWatcher | None = None,
    outcomes: Outcomes = no_outcome,
    combine: bool = True,
    **asked: Any,
) -> Report:
    options = {"levers": levers or LEVERS, "combine": combine}
    launcher = launcher or FakeLauncher(CostModel(launch_noise=0.004, factors=factors), outcomes=outcomes)
    return tune(ask("tune", **{"world_size": 2, **asked}), launcher, watcher or RecordingWatcher(), **options)


def tuning_of(report: Report) -> dict[str, Any]:
    assert report.path is not None
    tuning: dict[str, Any] = json.loads((report.path / "tuning.json").read_text())
    return tuning


def lever_of(report: Report, name: str) -> dict[str, Any]:
    (lever,) = [lever for lever in tuning_of(report)["levers"] if lever["lever"] == name]
    return dict(lever)


def statuses(report: Report) -> dict[str, str]:
    return {lever["lever"]: lever["status"] for lever in tuning_of(report)["levers"]}


def measured(report: Report) -> dict[tuple[str, ...], dict[str, Any]]:
    """The combinations of tuning.json, by their levers."""
    return {tuple(row["levers"]): row for row in tuning_of(report)["combinations"]}


def table(report: Report, title: str) -> list[dict[str, str]]:
    """The rows of the table whose title begins so, by column."""
    (section,) = [section for section in report.sections if (section.title or "").startswith(title)]
    assert section.table is not None
    return [dict(zip(section.table.columns, row, strict=True)) for row in section.table.rows]


def sentence(report: Report) -> str:
    return report.sections[0].lines[0]


def stages(path: str = "run") -> list[str]:
    return [result.stage.kind for result in load_run(path).results if result.stage is not None]


def results_of(path: str = "run") -> tuple[Result, ...]:
    return load_run(path).results


def with_loss(loss: float, *pairs: tuple[str, object]) -> Outcomes:
    """Ranks whose loss is another one where these settings are on."""

    def outcome(trial: Trial, launch: int) -> Outcome | None:
        if not has(trial, *pairs):
            return None
        made = simulated(HELPING, trial, launch)
        for record in made.records:
            record.samples["loss"] = [loss] * len(record.samples["loss"])
        return made

    return outcome


def simulated(factors: Factors, trial: Trial, launch: int) -> Outcome:
    """What a launch would give by these factors."""
    launcher = FakeLauncher(CostModel(launch_noise=0.004, factors=factors))
    return launcher.launch(trial, launch, None, None, RecordingWatcher())  # type: ignore[arg-type]
