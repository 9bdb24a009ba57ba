"""A run as a SLURM job: submit it, follow it, and read what it found.

The job's steps measure and write; this side only reads. Both meet in the run folder and in nothing else.
"""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scalescope.errors import (
    BadInput,
    CannotRun,
    ExitCode,
    Interrupted,
    ScalescopeError,
    StorageError,
)
from scalescope.experiment.given import Entries, Given
from scalescope.experiment.trial import Trial
from scalescope.launch.recorded import RecordedLauncher
from scalescope.launch.slurm import queue as slurm
from scalescope.report.section import Section
from scalescope.results.files import to_text, write_atomically
from scalescope.results.result import Result
from scalescope.results.run_folder import ENVIRONMENT, TRIALS, point_latest_at
from scalescope.studies.campaign import BUDGET_SPENT, CampaignWatcher
from scalescope.studies.slurm.queue import cancel, follow
from scalescope.studies.slurm.slurm_request import FOLDER, JOB, REQUEST, SCRIPT, SlurmRun, job_id_of
from scalescope.studies.study import StudyReport

_FILES_APPEAR_S = 60.0  # the longest that NFS keeps what it knows of a folder

Study = Callable[..., StudyReport]


def run_on_slurm(run: SlurmRun, study: Study, watcher: CampaignWatcher, **options: Any) -> StudyReport:
    """Submit the job, or take up the one that is still there, and show what it found."""
    number = _job_still_there(run) or _submit(run, watcher)
    try:
        state = follow(number, run.path, watcher, lambda: _planned(run, study, options))
    except Interrupted as interruption:
        interruption.kept = _after(interruption, number, run, study, watcher, options)
        raise
    if not _appear(run.path, _patience_s(run.path, number, state)):
        raise CannotRun(f"job {number} ended ({state}) and measured nothing: {_last_word(run.path, number)}")
    report = _collect(run, study, watcher, options)
    if not report.missing:
        return report
    many = f"{report.missing} launches are missing: --resume submits them."
    lacking = many if report.missing > 1 else "1 launch is missing: --resume submits it."
    watcher.noted(f"Job {number} ended ({state}); {lacking}{_why_not_all(run.path, number, state)}")
    code = report.exit_code or (ExitCode.OK if state.word == slurm.COMPLETED else ExitCode.WORKER_FAILED)
    return dataclasses.replace(report, exit_code=code)


def _after(
    interruption: Interrupted,
    number: str,
    run: SlurmRun,
    study: Study,
    watcher: CampaignWatcher,
    options: Mapping[str, Any],
) -> str:
    """Do with the job what the signal means, and say what is left of it."""
    if interruption.signum != signal.SIGINT:  # the connection or the host goes, not the wish to measure
        return f"job {number} goes on; --resume with --output-dir {run.path} follows it again"
    cancelled = cancel(number, watcher)
    with contextlib.suppress(ScalescopeError):  # that we were stopped is what the person must hear
        _collect(run, study, watcher, options)
    kept = f"finished launches are kept in {run.path}"
    if cancelled:
        return f"job {number} is cancelled; {kept}; --resume submits the rest"
    return f"job {number} may go on: 'scancel {number}' ends it, --resume follows it; {kept}"


def _submit(run: SlurmRun, watcher: CampaignWatcher) -> str:
    folder = run.path / FOLDER
    if not run.request.resume and ((run.path / TRIALS).exists() or job_id_of(run.path)):
        raise BadInput(f"{run.path} already holds a run; --resume continues it, another folder starts anew")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{run.path}: cannot be written: {error.strerror}") from None
    write_atomically(folder / REQUEST, run.yaml)
    write_atomically(folder / SCRIPT, run.script)
    write_atomically(folder / JOB, to_text(run.asked))  # a submission that fails can be repeated by --resume
    number = slurm.submit(folder / SCRIPT)
    try:
        write_atomically(folder / JOB, to_text({"job_id": number, **run.asked}))
    except BaseException:  # a job that nobody knows of must not run
        cancel(number, watcher)
        raise
    if run.request.experiment({}).measuring.output_dir is None:
        point_latest_at(run.path)
    job = run.job
    watcher.noted(
        f"Job {number}: {job.tasks} rank{'s' if job.tasks > 1 else ''} on "
        f"{job.nodes} node{'s' if job.nodes > 1 else ''}, {job.launches} "
        f"launch{'es' if job.launches > 1 else ''}. It writes to {run.path}, which the nodes must see too."
    )
    return number


def _job_still_there(run: SlurmRun) -> str | None:
    """The job of the run where SLURM still has it: a second one would measure beside it."""
    number = job_id_of(run.path) if run.request.resume else None
    return None if number is None or slurm.state_of(number).is_over else number


def _collect(
    run: SlurmRun,
    study: Study,
    watcher: CampaignWatcher,
    options: Mapping[str, Any],
    *,
    dry_run: bool = False,
) -> StudyReport:
    """Let the study read the run as if it had made it: same sections, same summary."""
    flags: Entries = {"output_dir": (Given(str(run.path), "--output-dir"),)}
    request = dataclasses.replace(
        run.request,
        file=run.path / FOLDER / REQUEST,
        flags=flags,
        only_launches=(),
        resume=True,
        dry_run=dry_run,
    )
    # The step of one task is no group of ranks: it planned and launched as on any machine.
    alone = run.job.tasks == 1
    launcher = RecordedLauncher(run.path, repeatable=alone)
    return study(request, launcher, watcher, most_ranks=None if alone else run.job.tasks, **options)


def _planned(run: SlurmRun, study: Study, options: Mapping[str, Any]) -> tuple[tuple[Trial, int], ...] | None:
    """The launches that the job makes; None where that is not known."""
    try:
        return _collect(run, study, _Unheard(), options, dry_run=True).planned
    except ScalescopeError:
        return None


class _Unheard:
    """A watcher for a plan that is only counted."""

    def noted(self, line: str) -> None: ...

    def shown(self, sections: tuple[Section, ...]) -> None: ...

    def began(
        self, launches: Sequence[tuple[Trial, int]], finished: Sequence[Result], budget_s: float | None
    ) -> None: ...

    def launching(self, trial: Trial, launch: int) -> None: ...

    def placed(self, lines: list[str], hosts: list[str]) -> None: ...

    def advanced(self, fraction: float) -> None: ...

    def ended(self, result: Result) -> None: ...

    def verdict(self, text: str) -> None: ...


def _patience_s(path: Path, number: str, state: slurm.JobState) -> float:
    """How long to look for what a job wrote: one that failed and says why needs no waiting for."""
    if state.word == slurm.COMPLETED:
        return _FILES_APPEAR_S
    return 0.0 if _log_of(path, number) else _FILES_APPEAR_S / 6


def _appear(path: Path, patience_s: float) -> bool:
    """Whether the job measured something; a network file system may show it a while after the job's end."""
    deadline = time.monotonic() + patience_s
    while True:
        with contextlib.suppress(OSError):
            next(path.iterdir(), None)  # makes such a file system look again
        if all((path / name).is_file() for name in (ENVIRONMENT, TRIALS)):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(min(1.0, patience_s))


def _why_not_all(path: Path, number: str, state: slurm.JobState) -> str:
    """A sentence of the job's own about the launches it did not make."""
    if state.word != slurm.COMPLETED:
        return f" It said: {_last_word(path, number)}"
    spent = [line for line in _log_of(path, number) or () if line.startswith(BUDGET_SPENT)]
    if not spent:
        return ""
    head, tail = spent[-1].partition(" with ")[0], spent[-1].rpartition("; ")[2]
    return f" It said: {head}; {tail}"  # what lies between counts the launches of one step


def _last_word(path: Path, number: str) -> str:
    """What the job said when it ended, or where to look."""
    output, lines = _output_of(path, number), _log_of(path, number)
    if lines is None:
        return f"it left no {output}; do the nodes see this folder?"
    own = [line.partition("scalescope: ")[2] for line in lines if "scalescope: " in line]
    own = [line for line in own if not line.startswith("stopped by ")]  # how it ended, but not why
    return f"{(own or lines or ['no message'])[-1]} (log: {output})"


def _output_of(path: Path, number: str) -> Path:
    return path / FOLDER / f"slurm-{number}.out"


def _log_of(path: Path, number: str) -> list[str] | None:
    """The lines that the job wrote; None where it left no file."""
    try:
        return _output_of(path, number).read_text(errors="replace").strip().splitlines()
    except OSError:
        return None
