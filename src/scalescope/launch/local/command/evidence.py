"""What a command left behind: its output, heartbeats, and where it crashed."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalescope.experiment.command_line import takes_world_size
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.launch.local.command.processes import CommandProcess
from scalescope.launch.local.command.views import CHOICES
from scalescope.launch.local.logs import tail_of
from scalescope.launch.local.rank_watch import signal_name
from scalescope.launch.probing import OUT_OF_MEMORY, MemoryKills
from scalescope.launch.telemetry.load import LoadMeter
from scalescope.private_view import OVERLAY, REDIRECT
from scalescope.quantities import counted
from scalescope.results.printable import printable
from scalescope.results.ranks import PROCESSES, Beat, Heartbeats, Phase, RankStage, is_secondary_error
from scalescope.results.run_folder import read_json

# ---- The line of a log that says best why a training command crashed


_READ_BYTES = 256 << 10
_LONGEST = 300
_BEGIN = "Traceback (most recent call last):"
_RANK_PREFIX = re.compile(r"^\[[\w-]+\]:\s?")  # `[rank0]: ` of torch, `[default0]:` of torchrun
# What launchers raise because a rank has failed.
_OF_LAUNCHERS = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
    "torch.multiprocessing.spawn.ProcessExitedException",
    "torch.multiprocessing.spawn.ProcessRaisedException",
    "subprocess.CalledProcessError",
)


def crash_line(log: Path) -> str:
    """The error of the last traceback that is the script's own, or else the last line; empty without any."""
    text = tail_of(log, _READ_BYTES).decode("utf-8", "replace")
    lines = [_RANK_PREFIX.sub("", line.rstrip()) for line in text.splitlines()]
    errors = _errors(lines)
    of_script = [line for line in errors if not line.startswith(_OF_LAUNCHERS)]
    first_causes = [line for line in of_script if not is_secondary_error(line)]
    if not of_script and errors:  # the launcher's own words come before its traceback
        lines = lines[: [line.endswith(_BEGIN) for line in lines].index(True)]
    printed = [line.strip() for line in lines if line.strip()]
    candidates = first_causes or of_script or printed or errors
    return printable(candidates[-1])[:_LONGEST] if candidates else ""


def _errors(lines: list[str]) -> list[str]:
    """The line after each traceback: the first that is not indented."""
    errors, inside = [], False
    for line in lines:
        if line.endswith(_BEGIN):  # a prompt may stand in front of it
            inside = True
        elif inside and line and not line[0].isspace():
            errors.append(line)
            inside = False
    return errors


# ---- Heartbeats where only some ranks can write them: those on this host, and not on other nodes


class HostHeartbeats(Heartbeats):
    """A rank of another node is where its record says, and then as far as the furthest rank of this host.

    All ranks step together, so one that stops shows here too; which one it was is then unknown.
    """

    records: Sequence[Callable[[], dict[str, Any]]] = ()  # by rank: what it has written so far

    def read(self, rank: int) -> Beat:
        beat = super().read(rank)
        state = None if beat.stage > RankStage.STARTING else self.records[rank]().get("state")
        if state == "running":
            beats_here = (Heartbeats.read(self, other) for other in range(len(self.records)))
            furthest = max(beats_here, key=lambda other: other.position)
            begun = Beat(0, 0, RankStage.WARMUP, Phase.INPUT, 0.0)
            return max(begun, furthest, key=lambda other: other.position)
        return Beat(0, 0, RankStage.TEARDOWN, Phase.INPUT, 0.0) if state == "done" else beat


# ---- Load in a job of SLURM, where ranks that a command starts by srun are not below us


class SlurmLoadMeter(LoadMeter):
    """Knows every process of a command as ours; what they compute is unknown once some are not below us.

    What such a process has computed is its daemon's as soon as it ends, and would look like others' load.
    """

    def __init__(self, process: CommandProcess) -> None:
        super().__init__()
        self._process = process
        self._knows_all = True

    def own_pids(self) -> frozenset[int]:
        return super().own_pids() | self._process.members()

    def _own_ticks(self) -> int | None:
        self._knows_all = self._knows_all and self.own_pids() == super().own_pids()
        return super()._own_ticks() if self._knows_all else None


# ---- What the processes of a training command left behind about themselves, and what that means


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
                    f"{reason}; the command writes there in a way that cannot be isolated here; {CHOICES}"
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
        return self._invalid(
            f"the command ran {counted(ran, 'rank')}, but {asked} {verb} requested; {advice}"
        )

    def _too_few_steps(self) -> str:
        """What was missing in a command that succeeded."""
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
        return f"{made} and ended before the measurement finished; let it train longer, or shorten --window"

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
