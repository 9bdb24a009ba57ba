"""Calls of commands on a run folder, in a process of their own with limits of time and memory."""

import dataclasses
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from mutating.operations import SECRET, make_outside, mutate, state_of
from scalescope.cli import app, measuring
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.fake import TWO_CORES, CostModel, FakeLauncher
from scalescope.launch.launcher import Outcome
from scalescope.studies.runs import resuming

MOST_S = 10.0  # for a call
MOST_BYTES = 4 << 30  # of address space
CODES = (0, 2, 3, 4, 5, 6, 7, 8)
VERBS = ("list", "explain", "report", "compare", "resume")
# A chapter or a file that an unforeseen error cost.
_FAILED_PART = re.compile(r"could not be (made: .*|written: \w+\(.*)")
MODEL = CostModel(exposed_comm_s={2: 0.004, 4: 0.01})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """One command on one folder."""

    verb: str
    code: int | None  # None where it did not end by itself
    seconds: float
    problem: str = ""  # empty where it did what it should


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """All commands on one mutated folder."""

    seed: int
    source: str
    operations: tuple[str, ...]
    calls: tuple[Call, ...]
    peak_bytes: int

    @property
    def problems(self) -> list[Call]:
        return [call for call in self.calls if call.problem]


class _TooLong(BaseException):
    """The limit of a call is over."""


def check_folder(seed: int, sources: Sequence[Path], where: Path, verbs: Sequence[str] = VERBS) -> Checked:
    """Copy a run, change it by the seed, and call every verb on it."""
    rng = random.Random(seed)
    source = rng.choice(list(sources))
    parent = where / f"folder-{seed}"
    parent.mkdir(parents=True)
    run = parent / "runs" / "run"
    shutil.copytree(source, run)
    outside = make_outside(parent)
    os.environ["SCALESCOPE_LEDGER"] = str(parent / "ledger.jsonl")
    os.environ["XDG_CACHE_HOME"] = str(parent / "cache")
    machine = _machine_of(source)
    # Changes may not lead outside themselves: they are made before the folder beside it is compared.
    operations = mutate(run, rng)
    before = state_of(outside)
    calls, peak = _in_child(parent, run, source, machine, verbs)
    if state_of(outside) != before:
        calls.append(
            Call(verb="all", code=None, seconds=0.0, problem="a file outside the folder was changed")
        )
    return Checked(
        seed=seed, source=source.name, operations=tuple(operations), calls=tuple(calls), peak_bytes=peak
    )


def remove_folder(seed: int, where: Path) -> None:
    """Remove what a check left, whatever its rights are."""
    shutil.rmtree(where / f"folder-{seed}", ignore_errors=True)


def _machine_of(source: Path) -> Machine:
    """The machine that the healthy run was measured on, so that continuing it is allowed."""
    try:
        return Machine.from_json(json.loads((source / "environment.json").read_bytes())["machine"])
    except (OSError, ValueError, KeyError, TypeError):
        return TWO_CORES


def _in_child(
    parent: Path, run: Path, source: Path, machine: Machine, verbs: Sequence[str]
) -> tuple[list[Call], int]:
    answers = parent / "calls.jsonl"
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _call_all(answers, run, source, machine, verbs)
    deadline = time.monotonic() + (MOST_S + 5.0) * len(verbs)
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    lines = answers.read_text().splitlines() if answers.exists() else []
    calls = [Call(**json.loads(line)) for line in lines]
    if status != 0:
        verb = verbs[len(calls)] if len(calls) < len(verbs) else verbs[-1]
        calls.append(Call(verb=verb, code=None, seconds=0.0, problem=f"the process died: status {status}"))
    return calls, usage.ru_maxrss * 1024


def _call_all(answers: Path, run: Path, source: Path, machine: Machine, verbs: Sequence[str]) -> NoReturn:
    """The child: makes every call and writes how each ended."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        os.environ["COLUMNS"] = "100"
        measuring._local_launcher = lambda *_: FakeLauncher(
            MODEL, machine, _without_traces
        )  # nothing real is launched
        resuming.machine_here = dict
        os.chdir(run.parent.parent)
        with answers.open("w") as stream:
            for verb in verbs:
                call = _call(verb, run, source)
                stream.write(json.dumps(dataclasses.asdict(call)) + "\n")
                stream.flush()
        code = 0
    finally:
        os._exit(code)


def _without_traces(trial: Trial, launch: int) -> Outcome | None:
    return Outcome(status="ok") if trial.benchmark == "profile" else None  # nothing simulates a trace


def _arguments(verb: str, run: Path, source: Path) -> list[str]:
    if verb == "list":
        return ["list", str(run.parent)]
    if verb == "compare":
        return ["compare", str(source), str(run)]
    return [verb, str(run)]


def _call(verb: str, run: Path, source: Path) -> Call:
    output = run.parent.parent / f"output-{verb}.txt"
    began = time.monotonic()
    code, problem = None, ""
    with output.open("wb") as stream:
        kept = [os.dup(1), os.dup(2)]
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
        signal.signal(signal.SIGALRM, _end_call)
        signal.setitimer(signal.ITIMER_REAL, MOST_S)
        try:
            app.main(_arguments(verb, run, source))
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 0
        except _TooLong:
            problem = f"took longer than {MOST_S:g} s: {_last_frame()}"
        except BaseException as error:
            problem = f"{type(error).__name__}: {error} {_last_frame()}"[:400]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, saved in zip((1, 2), kept, strict=True):
                os.dup2(saved, descriptor)
                os.close(saved)
    seconds = time.monotonic() - began
    return Call(verb=verb, code=code, seconds=seconds, problem=problem or _problem_of(code, output, run))


def _end_call(*_: Any) -> None:
    raise _TooLong


def _last_frame() -> str:
    """Where in the package an error arose."""
    frames = [frame for frame in traceback.extract_tb(sys.exc_info()[2]) if "/scalescope/" in frame.filename]
    return " < ".join(
        f"{frame.filename.rpartition('/scalescope/')[2]}:{frame.lineno}" for frame in reversed(frames[-3:])
    )


def _problem_of(code: int | None, output: Path, run: Path) -> str:
    text = output.read_bytes()
    if b"Traceback (most recent call last)" in text:
        return "a traceback was printed"
    failed = _FAILED_PART.search(text.decode(errors="replace"))
    if failed is not None:
        return failed[0][:300]
    if code not in CODES:
        return f"exit code {code}"
    if SECRET.encode() in text:
        return "content of a file outside the folder was shown"
    if len(text) > 1 << 20:
        return f"{len(text)} bytes of output"
    return ""
