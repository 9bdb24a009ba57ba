"""Follows a job through SLURM's queue, and ends it when the person wants that."""

import time
from pathlib import Path

from scalescope.errors import CannotRun, ScalescopeError
from scalescope.experiment.trial import Trial
from scalescope.launch import slurm
from scalescope.results.run_folder import TRIALS
from scalescope.results.schema import parse_result
from scalescope.studies.campaign import CampaignWatcher

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 10.0
_PATIENCE_S = 600.0  # with a controller that does not answer
_CANCEL_LIMIT_S = 60.0


def follow(number: str, path: Path, watcher: CampaignWatcher) -> slurm.JobState:
    """Tell how the job goes on until it is over."""
    told, heard = "", _Trials(path / TRIALS)
    wait_s, answered = _FIRST_WAIT_S, time.monotonic()
    while True:
        try:
            state = slurm.state_of(number)
            answered = time.monotonic()
        except slurm.Unanswered as error:
            state = slurm.JobState("RUNNING")
            if time.monotonic() - answered > _PATIENCE_S:
                raise CannotRun(f"{error}; job {number} may go on, and --resume follows it again") from None
        heard.tell(watcher)
        if state.is_over:
            return state
        if str(state) != told:
            told = str(state)
            watcher.noted(f"Job {number} is {told}.")
        time.sleep(wait_s)
        wait_s = min(_LONGEST_WAIT_S, wait_s * 1.3)


class _Trials:
    """The lines of a run's results that came since last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = path.stat().st_size if path.exists() else 0

    def tell(self, watcher: CampaignWatcher) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as stream:
            stream.seek(self._read)
            for line in stream:
                if not line.endswith(b"\n"):
                    return  # the rest is being written
                self._read += len(line)
                try:
                    result = parse_result(line)
                except ValueError:
                    continue  # said when the run is read as a whole
                watcher.launching(Trial(settings=result.settings), result.launch)
                watcher.ended(result)


def cancel(number: str, watcher: CampaignWatcher) -> None:
    """End the job and wait until its ranks are gone, for they write what they have."""
    try:
        slurm.cancel(number)
        deadline = time.monotonic() + _CANCEL_LIMIT_S
        while not slurm.state_of(number).is_over and time.monotonic() < deadline:
            time.sleep(_FIRST_WAIT_S)
    except ScalescopeError as error:
        watcher.noted(f"Job {number} could not be cancelled: {error}")
