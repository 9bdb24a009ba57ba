"""Trials and launches of training commands, made up: every number in them is known."""

import dataclasses
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scalescope.catalog import cards
from scalescope.catalog.measuring import Measuring
from scalescope.catalog.setting import settings_of
from scalescope.experiment.expand import defaults_of
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.results.ranks import RankPlacement
from scalescope.results.result import Result
from scalescope.results.run_folder import RunFolder
from tests.builders.results import make_result

COMMAND = "torchrun --nproc-per-node={world_size} train.py --lr 0.1"
_SELECTION = {"workloads": "command", "data": "own", "strategies": "script"}


def make_command(*, ranks: int = 1, **settings: Any) -> Trial:
    """A trial of a command, as its launches are stored and read: with what they showed of it."""
    values: dict[str, Any] = {"benchmark": "train"}
    for owner in cards.cards_of_trial("train", _SELECTION):
        values |= defaults_of(owner, _SELECTION, "cpu")
    values |= {"workload": "command", "data": "own", "strategy": "script", "backend": "gloo"}
    values |= {"device": "cpu", "threads_per_rank": 1, "command": COMMAND, "world_size": ranks}
    observed = {"observed_batch_size": 32, "observed_unit": "samples", "observed_wrapper": "ddp"}
    if settings.get("observed_global_batch_size") or settings.get("global_batch_size"):
        del observed["observed_batch_size"]
    return Trial(settings=dict(sorted({**values, **observed, **settings}.items())))


def command_launch(
    trial: Trial,
    step_s: float,
    *,
    launch: int = 0,
    samples: int | None = 32,
    wrapper: str = "ddp",
    tables: dict[str, Any] | None = None,
    **counters: Any,
) -> Result:
    """One launch of ten steps; `samples` are those of a rank and step, None where it does not show them."""
    result = make_result(trial, [[step_s] * 10] * trial.world_size, launch=launch)
    observed = {
        "observed/wrapper": wrapper,
        "observed/optimizers": "AdamW",
        "observed/step_from": "optimizer steps",
        "measured_steps": 10,
        **({} if samples is None else {"measured_samples": 10 * samples}),
        **counters,
    }
    ranks = [
        dataclasses.replace(record, counters=observed, tables=tables or {}, samples=dict(record.samples))
        for record in result.ranks
    ]
    return dataclasses.replace(result, ranks=ranks)


def command_launches(trial: Trial, steps_s: Sequence[float], **rest: Any) -> list[Result]:
    """A launch for each step time."""
    return [command_launch(trial, step_s, launch=number, **rest) for number, step_s in enumerate(steps_s)]


# ---- Launches of commands, acted ones among them, without the command line around them

SCRIPT = Path(__file__).with_name("acted_command.py")


def command_trial(command: str, **settings: Any) -> Trial:
    """A trial of a command with the defaults of its cards."""
    selection = {"workloads": "command", "data": "own", "strategies": "script"}
    owners = cards.cards_of_trial("train", selection)
    known = {setting.name: setting.default_for("cpu") for owner in owners for setting in settings_of(owner)}
    chosen = {"benchmark": "train", "workload": "command", "data": "own", "strategy": "script"}
    where = {"device": "cpu", "threads_per_rank": 1, "pin_cores": "no", "batch_size": None}
    return Trial(settings={**known, **chosen, **where, "command": command, **settings})


def acted(behaviour: str, *words: str) -> str:
    """The acted command in one of its behaviours."""
    return " ".join([shlex.quote(sys.executable), "-I", shlex.quote(str(SCRIPT)), behaviour, *words])


class Recorder:
    """A watcher that keeps what it is told, and may interrupt."""

    def __init__(self, interrupt: Callable[[], None] = lambda: None) -> None:
        self.placements: Sequence[RankPlacement] = ()
        self.fractions: list[float] = []
        self._interrupt = interrupt

    def placed(self, ranks: Sequence[RankPlacement]) -> None:
        self.placements = ranks

    def advanced(self, fraction: float) -> None:
        self.fractions.append(fraction)
        self._interrupt()


class Commands:
    """Launches commands into one run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.watcher = Recorder()
        self.limits: dict[str, float] = {}
        self.deadline: float | None = None
        self.telemetry = False

    def launch(self, trial: Trial) -> Outcome:
        folder = RunFolder.open(self.path, resume=True)
        usual = {setting.name: setting.default for setting in settings_of(Measuring)}
        limits = Measuring(**{**usual, **self.limits})
        launcher = LocalLauncher(fork=False, telemetry=self.telemetry)
        try:
            return launcher.launch(trial, 0, folder, limits, self.watcher, deadline=self.deadline)
        finally:
            launcher.close()
            folder.close()

    def act(self, behaviour: str, *words: str, **settings: Any) -> Outcome:
        return self.launch(command_trial(acted(behaviour, *words), **settings))

    def log(self) -> Path:
        (log,) = (self.path / "logs").glob("*.log")
        return log
