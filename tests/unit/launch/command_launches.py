"""Launches of commands, acted ones among them, without the command line around them."""

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scalescope.catalog import cards
from scalescope.catalog.measuring import Measuring
from scalescope.catalog.setting import settings_of
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.results.ranks.rank_placement import RankPlacement
from scalescope.results.run_folder import RunFolder

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
