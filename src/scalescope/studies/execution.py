"""The path every measuring verb takes: request, plan, campaign, report."""

import contextlib
import dataclasses
import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from scalescope.analysis.other_load import load_text
from scalescope.catalog.workloads.custom import file_of
from scalescope.errors import BadInput, CannotRun, ExitCode, Interrupted, ScalescopeError, StorageError
from scalescope.experiment.machine import emulation_notes
from scalescope.experiment.record import to_mapping, to_yaml
from scalescope.experiment.yaml_file import read_experiment_file
from scalescope.launch.launcher import Launcher, RanksLost
from scalescope.report.caveats import disturbance_lines
from scalescope.report.results_json import measured_json
from scalescope.results.files import to_text
from scalescope.results.other_load import OtherLoad
from scalescope.results.provenance import WorkloadFile, sha256_of, workload_files
from scalescope.results.run import Run, load_run
from scalescope.results.run_folder import (
    DEFAULT_ROOT,
    ENVIRONMENT,
    EXPERIMENT,
    RESULTS,
    RunFolder,
    new_run_path,
    point_latest_at,
)
from scalescope.results.run_record import (
    RunEnd,
    RunRecord,
    began_at,
    read_run_record,
    resume_command,
    write_run_record,
)
from scalescope.results.stored.files import read_bytes
from scalescope.secret_variables import holds_mark
from scalescope.studies.campaign import nothing_finished_note, run_campaign
from scalescope.studies.environment import continued_environment, environment_record
from scalescope.studies.flags import deciding_flags
from scalescope.studies.plan import Plan
from scalescope.studies.prepared import Prepared, planned_here
from scalescope.studies.report import PAGE
from scalescope.studies.request import Request
from scalescope.studies.runs.run_history import remember_run
from scalescope.studies.runs.stored_runs import remember_predictions
from scalescope.studies.stored import is_unstable, report_of
from scalescope.studies.study import Report, Study
from scalescope.studies.watcher import CampaignWatcher

# What may differ between the command that began a run and the one that continues it.
_MAY_DIFFER = (
    "repeats",
    "repeat_disturbed",
    "budget",
    "name",
    "allow_oom",
    "window",
    "soak",
    "init_timeout",
    "warmup_timeout",
    "stall_timeout",
    "teardown_timeout",
    "redact_env",
)


def run_study(prepared: Prepared, launcher: Launcher, watcher: CampaignWatcher) -> Report:
    """Plan, measure, and present what is stored then."""
    prepared = planned_here(prepared, launcher)
    request, plan = prepared.request, prepared.plan
    for note in (*plan.notes, *emulation_notes(plan.all_trials, plan.machine)):
        watcher.noted(note)
    if preface := prepared.study.preface(plan):
        watcher.shown(preface)
    if request.dry_run:
        from scalescope.studies.dry_run import only_planned

        return only_planned(prepared, launcher, watcher)
    assert prepared.host is not None
    for trial in plan.all_trials:
        prepared.host.check(trial)
    for note in _changed_workloads(request, plan):
        watcher.noted(note)
    load = launcher.other_load()
    if load.is_present:
        watcher.noted(_load_note(load, is_repeated=not request.only_next))
    folder, plan = _open_folder(prepared)
    try:
        record = _begin(prepared, plan, launcher, folder, load)
        measured = _measured(prepared.study, plan, launcher, folder, watcher, record)
    except BaseException as error:
        _save_what_is_there(prepared.study, error, folder)
        _add_resume_command(error, folder.path)
        raise
    finally:
        folder.close()
    if measured is None:  # other commands go on
        return Report(sections=())
    return _concluded(measured, request, watcher)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What a campaign left: the report of the run, why it ended, and what has to be said."""

    report: Report
    run: Run
    end: RunEnd
    notes: tuple[str, ...]


def _measured(
    study: Study,
    plan: Plan,
    launcher: Launcher,
    folder: RunFolder,
    watcher: CampaignWatcher,
    record: RunRecord,
) -> _Measured | None:
    """Launch what is planned and present what is stored then; None where other commands go on."""
    notes, end = run_campaign(plan, launcher, folder, watcher, study)
    if end is None:
        return None
    # What is shown now is what a reader of the folder will see, who knows why the run ended.
    write_run_record(folder.path, dataclasses.replace(record, end=end))
    run = load_run(folder.path)
    folder.write(RESULTS, to_text(measured_json(run)))  # before anything that may fail on it
    report, unwritten = write_files(study.present(run), folder)
    assert report.run is not None
    end = dataclasses.replace(end, failed=_failed(study, report.run))
    write_run_record(folder.path, dataclasses.replace(record, end=end))
    return _Measured(report=report, run=report.run, end=end, notes=(*notes, *unwritten))


def _concluded(measured: _Measured, request: Request, watcher: CampaignWatcher) -> Report:
    """The report with what is remembered and said about the run, and its exit code."""
    report, run = measured.report, measured.run
    remember_run(run)
    unwritten = remember_predictions(run)
    if measured.end.why == "budget" and all(result.stopped_by == "budget" for result in run.results):
        raise CannotRun(nothing_finished_note(measured.end, run.path))
    for note in (*measured.notes, *disturbance_lines(run), *unwritten, *run.warnings):
        watcher.noted(note)
    if not run.results and not report.exit_code:
        raise CannotRun("nothing was measured")
    if request.only_next:
        return dataclasses.replace(report, exit_code=ExitCode.SEARCH_OVER)
    if request.strict and not report.exit_code and is_unstable(run):
        return dataclasses.replace(report, exit_code=ExitCode.INVALID)
    return report


def _failed(study: Study, run: Run) -> int:
    """Launches that may succeed when they are repeated, and whose failure is not an answer."""
    troubled = run.of_status("failed", "hang", "interrupted")
    return sum(not study.is_expected_failure(result) for result in troubled)


def _changed_workloads(request: Request, plan: Plan) -> list[str]:
    """That a file of the user's seems to have changed since the run began, where no launch recorded its
    content."""
    given = plan.experiment.measuring.output_dir
    if not request.resume or given is None:
        return []
    begun = began_at(Path(given)).timestamp()
    workloads = {trial.workload for trial in plan.trials if trial.has_setting("workload")}
    files = {file_of(workload) for workload in workloads - set(_recorded_files(Path(given)))} - {None}
    return [
        f"{file} has changed since this run began: launches before and after may not be the same model. "
        "A new run measures only the new model."
        for file in files
        if file is not None and file.is_file() and file.stat().st_mtime > begun
    ]


def _recorded_files(path: Path) -> dict[str, tuple[WorkloadFile, ...]]:
    """The files of workloads that the launches of a run recorded."""
    return workload_files(load_run(path).results) if (path / EXPERIMENT).is_file() else {}


def _check_same_code(path: Path) -> None:
    """Refuse to continue a run whose workload is not what its launches measured."""
    for workload, files in _recorded_files(path).items():
        for file in files:
            given = file_of(workload) or file.path
            sha256 = sha256_of(given)
            if sha256 is not None and sha256 != file.sha256:
                raise BadInput(
                    f"--resume: {given} has changed since this run began; start a new run, or restore it"
                )


def _load_note(load: OtherLoad, *, is_repeated: bool) -> str:
    """What others use before the first launch, and what that means."""
    average = "" if load.load_average is None else f" (load average {load.load_average:.1f})"
    return (
        f"Other load: {load_text(load, now=True)}{average}. Launches that it disturbs are "
        f"{'repeated, and ' if is_repeated else ''}compared with those under the same load; results are best "
        "without it."
    )


def _begin(
    prepared: Prepared, plan: Plan, launcher: Launcher, folder: RunFolder, load: OtherLoad
) -> RunRecord:
    """Write what was asked for, and where it is measured."""
    study, request = prepared.study, prepared.request
    stored = read_run_record(folder.path) if request.resume else RunRecord()
    begun = began_at(folder.path) if request.resume else datetime.now(UTC)
    record = RunRecord(
        verb=study.verb,
        flags=study.flags(),
        name=plan.experiment.measuring.name,
        directory=stored.directory or str(Path.cwd()),
        started_at=begun.isoformat(timespec="milliseconds"),
        repeatable=launcher.repeatable or request.is_shared,
        attached_ranks=launcher.ranks,
    )
    write_run_record(folder.path, record)
    folder.write(EXPERIMENT, to_yaml(plan.experiment, study.flags()))
    environment = environment_record(folder.path, plan, launcher, resume=request.resume)
    if environment is not None:
        folder.write(ENVIRONMENT, to_text({**environment, "load_at_start": load.to_json()}))
    return record


def _save_what_is_there(study: Study, error: BaseException, folder: RunFolder) -> None:
    """Leave a summary and an end also of a run that was stopped; its error is what a person must see."""
    with contextlib.suppress(Exception):
        run = load_run(folder.path)
        try:
            report = study.present(run)
        except Exception:
            report = report_of(study, run, ())
        if isinstance(error, Interrupted) and run.of_status("ok"):
            error.report = report
        write_files(report, folder)
    with contextlib.suppress(Exception):
        record = read_run_record(folder.path)
        write_run_record(folder.path, dataclasses.replace(record, end=_end_of(error)))


def _end_of(error: BaseException) -> RunEnd:
    """Why a run ended that something stopped."""
    if isinstance(error, Interrupted):
        return RunEnd(why="interrupted", signal=signal.Signals(error.signum).name)
    if isinstance(error, RanksLost):
        return RunEnd(why="ranks_lost", message=str(error))
    return RunEnd(why="failed", message=str(error) or repr(error))


def write_files(report: Report, folder: RunFolder) -> tuple[Report, list[str]]:
    """Write the files of a report; one that cannot be made costs itself, and a note."""
    notes = []
    unwritable: StorageError | None = None
    written = set()
    for name, text in report.files.items():
        try:
            folder.write(name, text())
            written.add(name)
        except StorageError as error:  # the others are written first
            unwritable = unwritable or error
        except ScalescopeError as error:
            notes.append(f"There is no {name}: {error}")
        except Exception as error:
            notes.append(f"{name} could not be written: {error!r}")
    if unwritable is not None:
        raise unwritable
    if PAGE in written:
        report = dataclasses.replace(report, page=folder.path / PAGE)
    return report, notes


def _add_resume_command(error: BaseException, path: Path) -> None:
    """Let what stopped a run name the command that continues it."""
    kept = f"finished launches are kept; {resume_command(path)} continues"
    if isinstance(error, Interrupted):
        error.kept = kept
    if isinstance(error, RanksLost):
        error.args = (f"{error}; {kept}",)


def _open_folder(prepared: Prepared) -> tuple[RunFolder, Plan]:
    """The run's folder, and the plan that is carried out there."""
    given, plan, resume = prepared.output_dir, prepared.plan, prepared.request.resume
    path = given or new_run_path(prepared.study.verb)
    if resume:
        check_continues(prepared.study, plan, path)
        plan = dataclasses.replace(plan, environment=continued_environment(path, plan.machine))
    folder = RunFolder.open(path, resume=resume)
    if not given or (resume and path.parent.resolve() == DEFAULT_ROOT.resolve()):
        point_latest_at(path)
    return folder, plan


def check_continues(study: Study, plan: Plan, path: Path) -> None:
    """Refuse to continue what is not a run, or was asked for with other settings or by another command."""
    if not (path / EXPERIMENT).is_file():
        raise BadInput(f"--resume: {path} has no run to continue")
    check_same_request(path / EXPERIMENT, to_mapping(plan.experiment))
    _check_same_study(study, read_run_record(path), path)
    if plan.only != ():  # who only reads changes nothing
        _check_same_code(path)


def _check_same_study(study: Study, stored: RunRecord, path: Path) -> None:
    if stored.verb != study.verb or _deciding(type(study).from_flags(stored.flags)) != _deciding(study):
        begun = shlex.join(("scalescope", stored.verb, *stored.flags))
        raise BadInput(f"--resume: {path} was started with a different command: {begun}")


def _deciding(study: Study) -> dict[str, str | bool]:
    return deciding_flags(study.flags(), study.flags_may_differ)


def check_same_request(stored: Path, wanted: Mapping[str, Any]) -> None:
    """A run is continued by the request that began it; only the number of repeats may grow."""
    before = _stored_request(stored)
    keys = sorted({*before, *wanted} - set(_MAY_DIFFER))
    differing = [key for key in keys if before.get(key) != wanted.get(key)]
    if differing:
        shown = ", ".join(_difference(key, before, wanted) for key in differing)
        raise BadInput(f"--resume: {stored.parent} was started with different settings: {shown}")


def _difference(key: str, before: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    if holds_mark(str(wanted.get(key))) and not holds_mark(str(before.get(key))):  # the values were stored
        return f"{key} (to continue with values that are stored, add --no-redact-env)"
    return f"{key} ({before.get(key, 'not set')}, now {wanted.get(key, 'not set')})"


def _stored_request(stored: Path) -> dict[str, Any]:
    """The keys and values of an experiment file; BadInput where it is not one."""
    read_experiment_file(stored)  # refuses aliases, tags and nesting, which loading would follow
    try:
        loaded = yaml.safe_load(read_bytes(stored))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BadInput(f"--resume: {stored}: cannot be read: {str(error).splitlines()[0]}") from None
    return {str(key): value for key, value in loaded.items()}
