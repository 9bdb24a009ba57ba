"""Calls of commands on a run folder, in a process of their own with limits of time and memory.

That process is a fork of a fresh interpreter, which is this module run as a program (`Caller`): it has no
threads, locks, patches or memory of whoever asks.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn, Self

from from_tests import TWO_CORES, CostModel, FakeLauncher

from mutating.operations import LEDGER, SECRET, make_outside, mutate, mutate_ledger, state_of
from scalescope.cli import app
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.studies import running
from scalescope.studies.runs import resuming

MOST_S = 10.0  # of CPU time for a call
MOST_WAIT_S = 60.0  # for a call: it may not wait, but others may use the machine
MOST_BYTES = 4 << 30  # of memory that a call asks for, beyond what the fresh interpreter has
CODES = (0, 2, 3, 4, 5, 6, 7, 8)
VERBS = ("list", "predict", "ledger", "explain", "report", "compare", "resume")
# A chapter or a file that an unforeseen error cost.
_FAILED_PART = re.compile(r"could not be (made: .*|written: \w+\(.*)")
_LEDGER_LINES = 20
MODEL = CostModel(exposed_comm_s={2: 0.004, 4: 0.01})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """One command on one folder."""

    verb: str
    code: int | None  # None where it did not end by itself
    seconds: float
    cpu_s: float = 0.0
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


class Caller:
    """A fresh interpreter that makes the calls on one folder after the other."""

    def __init__(self, *, most_s: float = MOST_S, draws: bool = True) -> None:
        """Without drawings pages take less time."""
        options = json.dumps({"most_s": most_s, "draws": draws})
        places = os.pathsep.join((_folder_of("mutating"), _folder_of("scalescope")))
        # Without threads of libraries: they would take memory for every core, and are lost in forks.
        libraries = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
        self._server = subprocess.Popen(
            [sys.executable, "-P", "-m", "mutating.calls", options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **libraries, "PYTHONPATH": places},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def calls(
        self, parent: Path, run: Path, source: Path, verbs: Sequence[str] = VERBS
    ) -> tuple[list[Call], int]:
        """How the calls on a run ended, and the most memory of their process."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps([str(parent), str(run), str(source), list(verbs)]) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        return [Call(**call) for call in answer["calls"]], answer["peak_bytes"]


def _folder_of(package: str) -> str:
    """Where a package lies, for the path of another interpreter."""
    return str(Path(str(sys.modules[package].__file__)).parents[1])


def check_folder(
    seed: int, sources: Sequence[Path], where: Path, caller: Caller, verbs: Sequence[str] = VERBS
) -> Checked:
    """Copy a run, change it and a ledger by the seed, and call every verb on them."""
    rng = random.Random(seed)
    source = rng.choice(list(sources))
    parent = where / f"folder-{seed}"
    parent.mkdir(parents=True)
    run = parent / "runs" / "run"
    shutil.copytree(source, run)
    outside = make_outside(parent)
    ledger = parent / "data" / LEDGER
    ledger.parent.mkdir()
    shipped = resources.files("scalescope.hardware").joinpath(LEDGER).read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(rng.sample(shipped, _LEDGER_LINES)))
    # Changes may not lead outside themselves: they are made before the folder beside it is compared.
    operations = [*mutate(run, rng), *mutate_ledger(ledger, rng)]
    is_locked = rng.random() < 0.05
    before = state_of(outside)
    with _locked(ledger) if is_locked else contextlib.nullcontext():
        calls, peak = caller.calls(parent, run, source, verbs)
    if state_of(outside) != before:
        calls.append(
            Call(verb="all", code=None, seconds=0.0, problem="a file outside the folder was changed")
        )
    return Checked(
        seed=seed, source=source.name, operations=tuple(operations), calls=tuple(calls), peak_bytes=peak
    )


@contextlib.contextmanager
def _locked(ledger: Path) -> Iterator[None]:
    """With the lock of a ledger held, where it is still a file."""
    if ledger.is_symlink() or not ledger.is_file() or not os.access(ledger, os.R_OK):
        yield
        return
    with ledger.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def remove_folder(seed: int, where: Path) -> None:
    """Remove what a check left, whatever its rights are."""
    shutil.rmtree(where / f"folder-{seed}", ignore_errors=True)


def _machine_of(source: Path) -> Machine:
    """The machine that the healthy run was measured on, so that continuing it is allowed."""
    try:
        return Machine.from_json(json.loads((source / "environment.json").read_bytes())["machine"])
    except (OSError, ValueError, KeyError, TypeError):
        return TWO_CORES


def _serve(*, most_s: float, draws: bool) -> None:
    """The fresh interpreter: answers every line of its input by a line."""
    answers = os.fdopen(os.dup(1), "w")
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 1)
    is_warm = False
    if not draws:
        from scalescope.report.render import page

        page.svg_for_page = lambda figure: "<svg></svg>"
    for line in sys.stdin:
        parent, run, source, verbs = json.loads(line)
        if not is_warm:
            _warm_up(Path(source))
            is_warm = True
        calls, peak = _in_child(Path(parent), Path(run), Path(source), verbs, most_s)
        answer = {"calls": [dataclasses.asdict(call) for call in calls], "peak_bytes": peak}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _warm_up(source: Path) -> None:
    """Call every verb on a healthy run: what is loaded then need not be loaded again in every fork."""
    with tempfile.TemporaryDirectory(prefix="scalescope-healthy-") as parent:
        run = Path(parent) / "runs" / "run"
        shutil.copytree(source, run)
        _set_up(Path(parent), source)
        for verb in VERBS:
            _call(verb, run, source, MOST_WAIT_S)
        os.chdir("/")


def _in_child(
    parent: Path, run: Path, source: Path, verbs: Sequence[str], most_s: float
) -> tuple[list[Call], int]:
    answers = parent / "calls.jsonl"
    child = os.fork()
    if child == 0:
        _call_all(answers, parent, run, source, verbs, most_s)
    deadline = time.monotonic() + (MOST_WAIT_S + 5.0) * len(verbs)
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


def _call_all(
    answers: Path, parent: Path, run: Path, source: Path, verbs: Sequence[str], most_s: float
) -> NoReturn:
    """The child: makes every call and writes how each ended."""
    code = 1
    try:
        _limit_memory()
        _set_up(parent, source)
        with answers.open("w") as stream:
            for verb in verbs:
                call = _call(verb, run, source, most_s)
                stream.write(json.dumps(dataclasses.asdict(call)) + "\n")
                stream.flush()
        code = 0
    finally:
        os._exit(code)


def _limit_memory() -> None:
    """Allow so much more than there is.

    Memory that can be written is limited, not addresses: of those libraries reserve many, for every core.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = _writable_bytes() + MOST_BYTES
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _writable_bytes() -> int:
    """What the limit counts already; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:")), 0)


def _set_up(parent: Path, source: Path) -> None:
    """Let commands work below a folder, and launch nothing real."""
    os.environ["COLUMNS"] = "100"
    os.environ["SCALESCOPE_LEDGER"] = str(parent / "data" / LEDGER)
    os.environ["XDG_CACHE_HOME"] = str(parent / "cache")
    machine = _machine_of(source)
    running._launcher_for = lambda *_: FakeLauncher(MODEL, machine, _without_traces)
    resuming.machine_here = dict
    os.chdir(parent)


def _without_traces(trial: Trial, launch: int) -> Outcome | None:
    return Outcome(status="ok") if trial.benchmark == "profile" else None  # nothing simulates a trace


def _arguments(verb: str, run: Path, source: Path) -> list[str]:
    if verb == "list":
        return ["list", str(run.parent)]
    if verb == "ledger":
        return ["predict", "--ledger"]
    if verb == "compare":
        return ["compare", str(source), str(run)]
    return [verb, str(run)]


def _call(verb: str, run: Path, source: Path, most_s: float) -> Call:
    output = run.parent.parent / f"output-{verb}.txt"
    began, began_cpu = time.monotonic(), time.process_time()
    code, problem = None, ""
    with output.open("wb") as stream:
        kept = [os.dup(1), os.dup(2)]
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, _end_call)
        signal.setitimer(signal.ITIMER_PROF, most_s)
        signal.setitimer(signal.ITIMER_REAL, MOST_WAIT_S)
        try:
            app.main(_arguments(verb, run, source))
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 0
        except _TooLong:
            problem = f"took more than {most_s:g} s of CPU, or {MOST_WAIT_S:g} s: {_last_frame()}"
        except BaseException as error:
            problem = f"{type(error).__name__}: {error} {_last_frame()}"[:400]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, saved in zip((1, 2), kept, strict=True):
                os.dup2(saved, descriptor)
                os.close(saved)
    return Call(
        verb=verb,
        code=code,
        seconds=time.monotonic() - began,
        cpu_s=time.process_time() - began_cpu,
        problem=problem or problem_of(code, output),
    )


def _end_call(*_: Any) -> None:
    raise _TooLong


def _last_frame() -> str:
    """Where in the package an error arose."""
    frames = [frame for frame in traceback.extract_tb(sys.exc_info()[2]) if "/scalescope/" in frame.filename]
    return " < ".join(
        f"{frame.filename.rpartition('/scalescope/')[2]}:{frame.lineno}" for frame in reversed(frames[-3:])
    )


def problem_of(code: int | None, output: Path) -> str:
    """What is wrong with how a call ended; empty where it did what it should."""
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


if __name__ == "__main__":
    _serve(**json.loads(sys.argv[1]))
