"""A run as a SLURM job: submit it, follow it, and read what it found.

The job's steps measure and write; this side only reads. Both meet in the run folder and in nothing else.
"""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from scalescope.errors import (
    BadInput,
    CannotRun,
    ExitCode,
    Interrupted,
    ScalescopeError,
    StorageError,
)
from scalescope.launch.slurm import queue as slurm
from scalescope.results.files import to_text, write_atomically
from scalescope.results.run import load_run
from scalescope.results.run_folder import ENVIRONMENT, RUN, TRIALS, RunFolder, point_latest_at
from scalescope.results.run_record import read_run_record, write_run_record
from scalescope.secret_variables import with_secrets
from scalescope.studies.campaign import missing_launches
from scalescope.studies.execution import write_files
from scalescope.studies.plan import Launch
from scalescope.studies.slurm.queue import QueueWait, cancel, follow
from scalescope.studies.slurm.slurm_request import FOLDER, JOB, REQUEST, SCRIPT, SlurmRun, job_id_of
from scalescope.studies.stored import is_unstable, recorded_host
from scalescope.studies.study import Interim, Report
from scalescope.studies.watcher import CampaignWatcher

_ERROR_PREFIX = "scalescope: "  # of the line with which the command line ends
_FILES_APPEAR_S = 60.0  # the longest that NFS keeps what it knows of a folder


def run_on_slurm(run: SlurmRun, watcher: CampaignWatcher) -> Report:
    """Submit the job, or take up the one that is still there, and show what it measured."""
    number = _job_still_there(run) or _submit(run, watcher)
    try:
        wait = QueueWait(number, run.path, run.queue_timeout_s)
        state = follow(number, run.path, watcher, lambda: _planned(run), lambda: _interim(run), wait)
    except Interrupted as interruption:
        interruption.kept = _after(interruption, number, run, watcher)
        raise
    if not _appear(run.path, _patience_s(run.path, number, state)):
        raise CannotRun(f"job {number} ended ({state}) and measured nothing: {_error_of(run.path, number)}")
    report = _collect(run, watcher)
    if run.job.in_turn:
        return _of_search(report, run, number, state, watcher)
    planned = _planned(run)
    assert report.run is not None
    missing = 0 if planned is None else missing_launches(planned, report.run)
    if not missing:
        return report
    many = f"{missing} launches are missing: --resume submits them."
    lacking = many if missing > 1 else "1 launch is missing: --resume submits it."
    watcher.noted(f"Job {number} ended ({state}); {lacking}{_why_not_all(run.path, number, state)}")
    code = report.exit_code or (ExitCode.OK if state.word == slurm.COMPLETED else ExitCode.WORKER_FAILED)
    return dataclasses.replace(report, exit_code=code)


def _of_search(
    report: Report, run: SlurmRun, number: str, state: slurm.JobState, watcher: CampaignWatcher
) -> Report:
    """The report of a job that decided on the way what to launch; whether it was done, its record says."""
    end = read_run_record(run.path).end
    if end is not None and end.why in ("finished", "budget"):
        return report
    error = "" if state.word == slurm.COMPLETED else f" Its error: {_error_of(run.path, number)}"
    watcher.noted(
        f"Job {number} ended ({state}) before its search was over: --resume submits the rest.{error}"
    )
    return dataclasses.replace(report, exit_code=report.exit_code or ExitCode.WORKER_FAILED)


def _interim(run: SlurmRun) -> Interim | None:
    """The answer of a search so far; None where the job makes planned launches, or there is no answer."""
    if not run.job.in_turn:
        return None
    try:
        return run.prepared.study.interim(load_run(run.path))
    except ScalescopeError:  # files of the run that are not there yet
        return None


def _after(interruption: Interrupted, number: str, run: SlurmRun, watcher: CampaignWatcher) -> str:
    """Do with the job what the signal means; returns what is left of it."""
    if interruption.signum != signal.SIGINT:  # the connection or the host goes, not the wish to measure
        return f"job {number} is still running; --resume with --output-dir {run.path} follows it again"
    cancelled = cancel(number, watcher)
    with contextlib.suppress(ScalescopeError):  # what stopped the run is what the person must see
        _collect(run, watcher)
    kept = f"finished launches are kept in {run.path}"
    if cancelled:
        return f"job {number} is cancelled; {kept}; --resume submits the rest"
    return f"job {number} may still be running: 'scancel {number}' ends it, --resume follows it; {kept}"


def _submit(run: SlurmRun, watcher: CampaignWatcher) -> str:
    folder = run.path / FOLDER
    if run.stored_shell_text and not run.prepared.request.trust:
        raise BadInput(
            f"{folder / JOB} stores shell text ({', '.join(run.stored_shell_text)}) that the job would run; "
            "--dry-run shows the script; add --trust to submit it, or give --setup and --slurm-template again"
        )
    if not run.prepared.request.resume and ((run.path / TRIALS).exists() or job_id_of(run.path)):
        raise BadInput(
            f"{run.path} already contains a run; use --resume to continue it, or give another folder"
        )
    with_secrets(run.yaml)  # refuses those whose values are not known
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{run.path}: cannot be written: {error.strerror}") from None
    write_atomically(folder / REQUEST, run.yaml)
    write_atomically(folder / SCRIPT, run.script)
    write_atomically(folder / JOB, to_text(run.asked))  # a submission that fails can be repeated by --resume
    if (run.path / RUN).is_file():  # what ended an earlier job says nothing about this one
        write_run_record(run.path, dataclasses.replace(read_run_record(run.path), end=None))
    number = slurm.submit(folder / SCRIPT)
    try:
        write_atomically(folder / JOB, to_text({"job_id": number, **run.asked}))
    except BaseException:  # a job that nobody knows of must not run
        cancel(number, watcher)
        raise
    if run.prepared.output_dir is None:
        point_latest_at(run.path)
    job = run.job
    launches = f"{job.launches} launch{'es' if job.launches > 1 else ''}"
    watcher.noted(
        f"Job {number}: {job.tasks} rank{'s' if job.tasks > 1 else ''} on "
        f"{job.nodes} node{'s' if job.nodes > 1 else ''}, "
        f"{'a step for each launch of the search' if job.in_turn else launches}. "
        f"It writes to {run.path}, which the nodes must see too."
    )
    return number


def _job_still_there(run: SlurmRun) -> str | None:
    """The job of the run where SLURM still has it: a second one would measure beside it."""
    number = job_id_of(run.path) if run.prepared.request.resume else None
    return None if number is None or slurm.state_of(number).is_over else number


def _collect(run: SlurmRun, watcher: CampaignWatcher) -> Report:
    """What the job measured, presented as on one machine; the files are brought up to it."""
    stored = load_run(run.path)
    if not stored.results:
        raise CannotRun("nothing was measured")
    folder = RunFolder.open(run.path, resume=True)
    try:
        report, notes = write_files(run.prepared.study.present(stored), folder)
    finally:
        folder.close()
    for note in (*notes, *stored.warnings):
        watcher.noted(note)
    if run.prepared.request.strict and not report.exit_code and is_unstable(stored):
        return dataclasses.replace(report, exit_code=ExitCode.INVALID)
    return report


def _planned(run: SlurmRun) -> list[Launch] | None:
    """The launches that the job makes; None where that is not known."""
    # What is not a group of ranks planned and launched as on any machine: a step of one task, a command.
    alone = run.job.tasks == 1 or run.job.of_command
    study, experiment = run.prepared.study, run.prepared.experiment
    try:
        repeatable = alone or run.job.in_turn
        host = recorded_host(run.path, repeatable=repeatable, ranks=None if alone else run.job.tasks)
        return study.plan(experiment, host, many=True).launches()
    except ScalescopeError:
        return None


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
    """Why the job did not make all launches, as far as it recorded that."""
    if state.word != slurm.COMPLETED:
        return f" Its error: {_error_of(path, number)}" if _has_error(path, number) else ""
    end = read_run_record(path).end
    if end is None or end.why != "budget" or end.budget_s is None:
        return ""
    return f" The budget of {end.budget_s:g} s ended it."


def _has_error(path: Path, number: str) -> bool:
    """Whether something besides launches stopped the job; what failed in a launch is shown with it."""
    end, lines = read_run_record(path).end, _log_of(path, number) or ()
    stopped = end is None or end.message is not None or not end.failed
    return stopped or _last_error(lines) is not None


def _error_of(path: Path, number: str) -> str:
    """What stopped the job: what its run recorded, else the end of its log."""
    output, lines = _output_of(path, number), _log_of(path, number)
    end = read_run_record(path).end
    if end is not None and end.message is not None:
        return f"{end.message} (log: {output})"
    if lines is None:
        return f"it wrote no {output}; is this folder visible to the nodes?"
    return f"{_last_error(lines) or (lines or ['no message'])[-1]} (log: {output})"


def _last_error(lines: Sequence[str]) -> str | None:
    """The error that a step printed before its ranks started; SLURM only adds that the step has ended."""
    errors = [line for line in lines if line.startswith(_ERROR_PREFIX)]
    return errors[-1] if errors else None


def _output_of(path: Path, number: str) -> Path:
    return path / FOLDER / f"slurm-{number}.out"


def _log_of(path: Path, number: str) -> list[str] | None:
    """The lines that the job wrote; None where it left no file."""
    try:
        return _output_of(path, number).read_text(errors="replace").strip().splitlines()
    except OSError:
        return None
