"""What the processes of a training command left behind about themselves, and what that means."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalescope.experiment.command_line import takes_world_size
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.launch.local.command.crash_line import crash_line
from scalescope.launch.local.command.views import CHOICES
from scalescope.launch.local.rank_watch import signal_name
from scalescope.launch.memory_kills import OUT_OF_MEMORY, MemoryKills
from scalescope.private_view import OVERLAY, REDIRECT
from scalescope.quantities import counted
from scalescope.results.printable import printable
from scalescope.results.ranks.attach_job import PROCESSES
from scalescope.results.run_folder import read_json

_WITHOUT_PATH = "start it with `python -m scalescope.attach -- ...`"
_NO_OVERLAY = re.compile(r"Read-only file system|os error 30|Value too large for defined data type")
_NOT_REDIRECTED = re.compile(r"PermissionError|Permission denied|os error 13")
NO_INPUT = "EOFError: EOF when reading a line"  # of input(), where there is no standard input
_INPUT_ADVICE = (
    "commands are run without standard input; give it as arguments, or from a file: "
    "-- bash -c 'python train.py < answers.txt'"
)
_OUT_OF_MEMORY = ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "MemoryError")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """One process of the command that ran our hook."""

    torch: bool = False  # it imported torch
    steps: int = 0  # of optimizers
    rank: int | None = None
    world_size: int | None = None
    error: str | None = None  # why our code could not be loaded
    refused: str | None = None  # what the script did that cannot be kept apart from the user's files

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "ProcessReport":
        names = (part.name for part in dataclasses.fields(cls))
        return cls(**{name: raw[name] for name in names if raw.get(name) is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEvidence:
    """All that is known of a command that gave no result."""

    trial: Trial
    processes: Sequence[ProcessReport]
    silent_ranks: Sequence[int]  # that neither wrote a record nor are any process's
    steps: int  # of the rank that is furthest
    log: Path
    view: str | None = None  # the kind of its private view of the file system
    kills: MemoryKills = dataclasses.field(default_factory=MemoryKills)

    def explain_end(self, exit_code: int) -> Outcome:
        """Why a command that ended gave no result."""
        refusals = [process.refused for process in self.processes if process.refused]
        if refusals:
            return self._invalid(f"{printable(refusals[0])}; {CHOICES}")
        if exit_code < 0:
            reason = f"the command was killed by {signal_name(-exit_code)}{self.kills.text(exit_code)}"
            return self._failed(reason, out_of_memory=self.kills.ended(exit_code))
        if exit_code > 0:
            line = crash_line(self.log)
            reason = f"the command exited with code {exit_code}" + (f": {line}" if line else "")
            if self.kills.in_group:  # its launcher ends well, and says that a rank was killed
                return self._failed(f"{reason}; the kernel {OUT_OF_MEMORY}", out_of_memory=True)
            if self._is_forbidden(line):
                return self._invalid(
                    f"{reason}; the command writes there in a way that cannot be kept apart here; {CHOICES}"
                )
            if line.startswith(NO_INPUT):
                return self.without_input(reason)
            return self._failed(reason, out_of_memory=line.startswith(_OUT_OF_MEMORY))
        return self.not_loaded() or self._invalid(self._too_few_steps())

    def _is_forbidden(self, line: str) -> bool:
        """Whether an error comes from a write that the private view does not allow."""
        forbidden = {OVERLAY: _NO_OVERLAY, REDIRECT: _NOT_REDIRECTED}.get(self.view or "")
        return forbidden is not None and forbidden.search(line) is not None

    def without_input(self, reason: str) -> Outcome:
        """That the script reads standard input, which will fail in every launch."""
        return self._invalid(f"{reason}; {_INPUT_ADVICE}")

    def not_loaded(self) -> Outcome | None:
        """That our code does not run in the command, or not in all of its ranks; None where it does."""
        loaded = [process for process in self.processes if process.error is None or process.torch]
        errors = [process.error for process in self.processes if process.error is not None]
        if not loaded and errors:
            return self._invalid(
                f"scalescope could not be loaded by the command's Python: {printable(errors[-1])}"
            )
        if not loaded:
            return self._invalid(f"scalescope was not loaded by the command's Python; {_WITHOUT_PATH}")
        if self.silent_ranks and len(self.silent_ranks) < self.trial.world_size:
            names = ", ".join(map(str, self.silent_ranks))
            return self._invalid(f"scalescope was not loaded by rank {names}; {_WITHOUT_PATH}")
        return None

    def wrong_world_size(self, ran: int) -> Outcome:
        """That the command ran another number of ranks than it was asked for."""
        asked = self.trial.world_size
        if takes_world_size(self.trial.command, self.trial.varied):
            advice = "its launcher does not follow {world_size}"
        else:
            advice = "put {world_size} where its launcher takes the number"
        verb = "was" if asked == 1 else "were"
        return self._invalid(f"the command ran {counted(ran, 'rank')}, {asked} {verb} asked for; {advice}")

    def _too_few_steps(self) -> str:
        """What was missing in a command that ended well."""
        if not any(process.torch for process in self.processes):
            return "the command never imported torch, so there was no training step to measure"
        given_up = [process.error for process in self.processes if process.torch and process.error]
        if given_up:
            return f"the command could not be measured: {printable(given_up[0])}"
        steps = max([self.steps, *(process.steps for process in self.processes)])
        if steps == 0:
            return (
                "the command made no optimizer step; call scalescope.step() once per step, or give --step-at"
            )
        needed = _needed_steps(self.trial)
        made = f"the command made {counted(steps, 'optimizer step')}"
        if steps < needed:
            return f"{made}; {needed} are needed, warm-up included: let it train longer"
        return f"{made} and ended before the measurement was over; let it train longer, or shorten --window"

    def _invalid(self, reason: str) -> Outcome:
        return Outcome(status="invalid", reason=reason, bad_input=True, log=self._log)

    def _failed(self, reason: str, *, out_of_memory: bool = False) -> Outcome:
        return Outcome(status="oom" if out_of_memory else "failed", reason=reason, log=self._log)

    @property
    def _log(self) -> str | None:
        """Path of the log; None for a command that keeps running, which writes to standard error."""
        return str(self.log) if self.log.exists() else None


def _needed_steps(trial: Trial) -> int:
    """The fewest steps that a launch can be measured with."""
    card = trial.benchmark_card
    warmup = card.warmup_iterations(trial.settings) or 0
    measured = card.measured_iterations(trial.settings)
    return int(warmup + (getattr(trial.options(card), "min_steps", 1) if measured is None else measured))


def read_reports(directory: Path) -> list[ProcessReport]:
    """Every process of the command that ran our hook."""
    raw = [read_json(file) for file in sorted((directory / PROCESSES).glob("*.json"))]
    return [ProcessReport.from_json(report) for report in raw if isinstance(report, dict)]


def extra_ranks(directory: Path) -> list[dict[str, Any]]:
    """What ranks beyond those that were asked for left."""
    raw = [read_json(file) for file in sorted(directory.glob("extra-*.json"))]
    return [report if isinstance(report, dict) else {} for report in raw]
