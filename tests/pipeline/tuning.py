"""What the tests of `tune` share: settings whose true effect is known, and what a run says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import Result
from scalescope.results.run import load_run
from scalescope.studies.study import Report
from tests.builders.studies import tune
from tests.builders.timed_launches import Factors
from tests.simulated.launcher import CostModel, FakeLauncher

from .recording import RecordingWatcher, ask

BF16, JIT, FUSED = ("precision", "bf16"), ("jit", True), ("fused_optimizer", True)
HOOK = ("comm_hook", "fp16")
Outcomes = Callable[[Trial, int], Outcome | None]
HELPING: Factors = {(BF16,): 0.7, (JIT,): 0.8, (HOOK,): 0.9, (BF16, HOOK): 1.3, (FUSED,): 1.5}
LEVERS = ("precision", "jit", "comm_hook", "fused_optimizer")


def no_outcome(trial: Trial, launch: int) -> Outcome | None:
    return None


def model_of(factors: Factors) -> CostModel:
    return CostModel(launch_noise=0.004, factors=dict(factors))


def has(trial: Trial, *pairs: tuple[str, object]) -> bool:
    """Whether a trial has these settings, and communicates."""
    return not trial.settings["without_communication"] and all(
        trial.settings[name] == value for name, value in pairs
    )


def is_baseline(trial: Trial) -> bool:
    return has(
        trial, ("precision", "fp32"), ("jit", False), ("comm_hook", "none"), ("fused_optimizer", False)
    )


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
    launcher = launcher or FakeLauncher(model_of(factors), outcomes=outcomes)
    return tune(ask("tune", **{"world_size": 2, **asked}), launcher, watcher or RecordingWatcher(), **options)


def tuning_in(path: Path | str = "run") -> dict[str, Any]:
    tuning: dict[str, Any] = json.loads(Path(path, "tuning.json").read_text())
    return tuning


def tuning_of(report: Report) -> dict[str, Any]:
    assert report.path is not None
    return tuning_in(report.path)


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
    assert report.headline is not None
    return report.headline


def results_of(path: Path | str = "run") -> tuple[Result, ...]:
    return load_run(path).results


def stages(path: Path | str = "run") -> list[str]:
    return [result.stage.kind for result in results_of(path) if result.stage is not None]


def with_loss(loss: float, *pairs: tuple[str, object]) -> Outcomes:
    """Ranks whose loss is another one where these settings are on."""

    def outcome(trial: Trial, launch: int) -> Outcome | None:
        if not has(trial, *pairs):
            return None
        simulated = FakeLauncher(model_of(HELPING))
        made = simulated.launch(trial, launch, None, None, RecordingWatcher())  # type: ignore[arg-type]
        for record in made.records:
            record.samples["loss"] = [loss] * len(record.samples["loss"])
        return made

    return outcome
