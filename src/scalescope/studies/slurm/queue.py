"""Follows a job through SLURM's queue, and ends it when the person wants that."""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scalescope.errors import CannotRun, ScalescopeError
from scalescope.launch.slurm import queue as slurm
from scalescope.results.run import load_run
from scalescope.results.run_folder import ENVIRONMENT, TRIALS
from scalescope.results.schema import parse_result
from scalescope.studies.campaign import KEPT
from scalescope.studies.plan import Launch
from scalescope.studies.study import Interim
from scalescope.studies.watcher import CampaignWatcher

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 10.0
_PATIENCE_S = 600.0  # with a controller that does not answer
_CANCEL_LIMIT_S = 60.0


Planned = Callable[[], Sequence[Launch] | None]


def follow(
    number: str,
    path: Path,
    watcher: CampaignWatcher,
    planned: Planned = lambda: None,
    interim: Callable[[], Interim | None] = lambda: None,
    wait: "QueueWait | None" = None,
) -> slurm.JobState:
    """Report the progress of a job until it is over.

    `planned` has its launches once they are known, `interim` the answer so far once there are results.
    """
    shown, trials, line = "", _Trials(path / TRIALS), _Line(number, watcher)
    wait_s, counted = _FIRST_WAIT_S, False
    while True:
        state = line.ask()
        if trials.tell(watcher) and (answer := interim()) is not None:
            watcher.verdict(answer)
        if not counted and (path / ENVIRONMENT).is_file():
            counted = True
            launches = planned()
            if launches is not None:
                watcher.began(
                    [(launch.trial, launch.number) for launch in launches],
                    load_run(path).of_status(*KEPT),
                    budget=None,
                )
        if state is not None and state.is_over:
            return state
        if state is not None and wait is not None:
            wait.check(state, watcher)
        if state is not None and str(state) != shown:
            shown = str(state)
            watcher.noted(f"Job {number} is {shown}.")
        time.sleep(wait_s)
        wait_s = min(_LONGEST_WAIT_S, wait_s * 1.3)


class QueueWait:
    """How long a job has been waiting in the queue, and how long it may; None is for ever."""

    def __init__(self, number: str, path: Path, limit_s: float | None) -> None:
        self._number = number
        self._path = path
        self._limit_s = limit_s
        self._since = time.monotonic()

    def check(self, state: slurm.JobState, watcher: CampaignWatcher) -> None:
        """Cancel the job and end the command if it has waited for too long."""
        if state.word != slurm.PENDING:
            self._since = time.monotonic()  # a job that is requeued waits anew
        if self._limit_s is None or time.monotonic() - self._since < self._limit_s:
            return
        left = "was cancelled" if cancel(self._number, watcher) else f"'scancel {self._number}' ends it"
        raise CannotRun(
            f"job {self._number} was {state} for longer than --queue-timeout {self._limit_s:g} s; {left}; "
            f"--resume with --output-dir {self._path} submits it again"
        )


class _Line:
    """The line to SLURM's controller, which may be restarted while a job runs."""

    def __init__(self, number: str, watcher: CampaignWatcher) -> None:
        self._number = number
        self._watcher = watcher
        self._answered = time.monotonic()
        self._complained = False

    def ask(self) -> slurm.JobState | None:
        """How the job stands; None where nobody answers: then it stands as it did, for all we know."""
        try:
            state = slurm.state_of(self._number)
        except slurm.Unanswered as error:
            if time.monotonic() - self._answered > _PATIENCE_S:
                raise CannotRun(
                    f"{error}; job {self._number} may still be running, and --resume follows it again"
                ) from None
            if not self._complained:
                self._watcher.noted(f"SLURM does not answer ({error}); asking again.")
            self._complained = True
            return None
        self._answered, self._complained = time.monotonic(), False
        return state


class _Trials:
    """The lines of a run's results that came since last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = path.stat().st_size if path.exists() else 0

    def tell(self, watcher: CampaignWatcher) -> int:
        """Pass the new results on; returns how many there were."""
        passed = 0
        if not self._path.exists():
            return passed
        with self._path.open("rb") as stream:
            stream.seek(self._read)
            for line in stream:
                if not line.endswith(b"\n"):
                    return passed  # the rest is being written
                self._read += len(line)
                try:
                    result = parse_result(line)
                except ValueError:
                    continue  # said when the run is read as a whole
                watcher.launching(result.trial, result.launch)
                watcher.ended(result)
                passed += 1
        return passed


def cancel(number: str, watcher: CampaignWatcher) -> bool:
    """End the job and wait until its ranks are gone, for they write what they have; says whether it heard."""
    try:
        slurm.cancel(number)
    except ScalescopeError as error:
        watcher.noted(f"Job {number} could not be cancelled: {error}")
        return False
    deadline = time.monotonic() + _CANCEL_LIMIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(slurm.Unanswered):  # asked again: the job was cancelled anyway
            if slurm.state_of(number).is_over:
                break
        time.sleep(_FIRST_WAIT_S)
    return True
