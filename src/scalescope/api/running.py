"""Runs a study for a call from Python: as the command line does, without its output and exits."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType
from typing import TypeVar

from scalescope.api.call import Call
from scalescope.api.functions import reference_of
from scalescope.api.results import StoredRun
from scalescope.api.settings import entries_of
from scalescope.errors import BadInput, Interrupted, ScalescopeError
from scalescope.experiment.given import Entries, Given
from scalescope.experiment.trial import Trial
from scalescope.launch.torchrun.rank_context import rank_context
from scalescope.progress.terminal import TerminalWatcher
from scalescope.report.section import Section
from scalescope.results.ranks import RankPlacement
from scalescope.results.result import Result
from scalescope.studies.prepared import prepare
from scalescope.studies.request import Request
from scalescope.studies.running import run_here
from scalescope.studies.runs.resuming import to_continue
from scalescope.studies.study import Interim, Study
from scalescope.studies.watcher import Budget

_STOPPING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # besides Ctrl-C
_SWITCHES = ("strict", "yes", "trust")  # of every measuring verb, besides `resume`

RunType = TypeVar("RunType", bound=StoredRun)


def measure(study: Study, call: Call, result_type: type[RunType]) -> RunType:
    """Run a study and return what it measured; an error is raised without the frames that found it."""
    try:
        return _measured(study, call, result_type)
    except ScalescopeError as error:
        raise error.with_traceback(None) from None


def _measured(study: Study, call: Call, result_type: type[RunType]) -> RunType:
    if rank_context(os.environ) is not None:
        raise BadInput(
            f"scalescope.{study.verb}() starts its own ranks and cannot be called under torchrun or srun; "
            f"run the script with python, or use the command scalescope {study.verb} there"
        )
    prepared = prepare(study, _request_of(study, call))  # bad input is refused before torch is loaded
    if prepared.request.resume:
        prepared = to_continue(prepared)
    with _stoppable(), _watcher_of(study, call) as watcher:
        report = run_here(prepared, None, watcher)
    assert report.run is not None  # only dry runs and shares of a run have none
    return result_type(run=report.run, measured=report, notes=tuple(watcher.notes))


def _request_of(study: Study, call: Call) -> Request:
    """The request that the command line would make."""
    given = dict(call.settings)
    switches = {name: bool(given.pop(name, False)) for name in _SWITCHES}
    flags = {**entries_of(study, given, (*call.options, *_SWITCHES)), **_workload(call)}
    return Request(
        verb=study.verb,
        benchmark=study.benchmark,
        flags=flags,
        resume=call.resume,
        started_s=time.monotonic(),
        strict=switches["strict"],
        yes=switches["yes"],
        trust=switches["trust"],
    )


def _workload(call: Call) -> Entries:
    if call.build is None:
        return {}
    if "workload" in call.settings:
        raise BadInput("workload=: is another name for build; give only one of them")
    return {"workload": (Given(reference_of(call.build), "build="),)}


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Turn the first signal into `Interrupted`, which keeps what is done, and then into what it would be.

    Outside the main thread signals are left alone, and so are the user's handlers for others than SIGINT.
    """
    caught: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        raise Interrupted(number)

    before = {number: signal.signal(number, handle) for number in _signals_to_handle()}
    kept = ""
    try:
        yield
    except Interrupted as interruption:
        kept = interruption.kept
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if caught and caught[0] != signal.SIGINT:
        signal.raise_signal(caught[0])  # ends this process, as it would have without us
    if caught:
        raise KeyboardInterrupt(kept)


def _signals_to_handle() -> list[int]:
    if threading.current_thread() is not threading.main_thread():
        return []
    ctrl_c = [] if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None) else [signal.SIGINT]
    others = [number for number in _STOPPING if signal.getsignal(number) is signal.SIG_DFL]
    return [*ctrl_c, *others]


class QuietWatcher:
    """Shows nothing and keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def __enter__(self) -> "QuietWatcher":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def noted(self, line: str) -> None:
        self.notes.append(line)

    def shown(self, sections: tuple[Section, ...]) -> None: ...

    def began(
        self, launches: Sequence[tuple[Trial, int]], finished: Sequence[Result], budget: Budget | None
    ) -> None: ...

    def launching(self, trial: Trial, launch: int, *, label: str | None = None) -> None: ...

    def placed(self, ranks: Sequence[RankPlacement]) -> None: ...

    def advanced(self, fraction: float) -> None: ...

    def ended(self, result: Result) -> None: ...

    def verdict(self, interim: Interim) -> None: ...


class NotingWatcher(TerminalWatcher):
    """Shows what the command line shows and keeps the notes."""

    def __init__(self, study: Study) -> None:
        super().__init__(every_placement=study.every_placement, verbose=False)
        self.notes: list[str] = []

    def __enter__(self) -> "NotingWatcher":
        super().__enter__()
        return self

    def noted(self, line: str) -> None:
        self.notes.append(line)
        super().noted(line)


def _watcher_of(study: Study, call: Call) -> QuietWatcher | NotingWatcher:
    """Progress where it is wanted, which by default is at a terminal."""
    at_terminal = sys.stderr is not None and sys.stderr.isatty()
    is_shown = at_terminal if call.progress is None else call.progress
    return NotingWatcher(study) if is_shown else QuietWatcher()
