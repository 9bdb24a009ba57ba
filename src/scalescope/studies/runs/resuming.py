"""What `resume` continues, and what of it can be refused from files alone, before torch is loaded.

Reading results and making plans take long to import, so each check imports what it needs.
"""

import contextlib
import dataclasses
import importlib.metadata
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalescope.cores import usable_cores
from scalescope.errors import BadInput, CannotRun, StorageError
from scalescope.experiment.given import Entries, Given
from scalescope.inspection import cpu_model
from scalescope.results.run_folder import (
    EXPERIMENT,
    JOB_REQUEST,
    TRIALS,
    WRITTEN,
    is_run_folder,
    refuse_in_use,
)
from scalescope.results.run_record import is_unfinished, read_run_record
from scalescope.results.stored.files import refused_entry
from scalescope.results.stored.records import read_environment
from scalescope.studies.request import Request
from scalescope.studies.runs.trust import refuse_untrusted
from scalescope.studies.slurm.slurm_request import submitted_flags
from scalescope.studies.stored import find_study, recorded_host
from scalescope.studies.study import Study

if TYPE_CHECKING:
    from scalescope.results.run import Run
    from scalescope.studies.prepared import Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRequest:
    """What began a run: the study with its flags, the request, and where it was started."""

    study: Study
    request: Request
    directory: Path | None  # None where it is not known, or gone


def stored_request(path: Path, flags: Entries) -> StoredRequest:
    """The request of a run, to be continued with `flags` changed; refuses what is not a run of ours."""
    if not path.is_dir():
        raise BadInput(f"resume: {path}: no such run folder")
    if not is_run_folder(path):
        raise BadInput(f"resume: {path}: contains no run")
    path = path.resolve()
    refused = refused_entry(path, WRITTEN)
    if refused is not None:
        raise StorageError(f"resume: {refused}; this run cannot be continued")
    # A job is submitted again by what was asked of it; what its steps made of that depends on their nodes.
    files = [file for name in (JOB_REQUEST, EXPERIMENT) if (file := path / name).is_file()]
    record = read_run_record(path)
    kind = find_study(record.verb)
    if not files or kind is None:
        raise BadInput(f"resume: {path} does not record which command created it, so it cannot be continued")
    submitted = submitted_flags(path)
    study = kind.from_flags(record.flags if submitted is None else submitted)
    request = Request(
        verb=study.verb,
        benchmark=study.benchmark,
        file=files[0],
        flags={**flags, "output_dir": (Given(str(path), "RUN"),)},
        resume=True,
    )
    directory = Path(record.directory) if record.directory is not None else None
    return StoredRequest(
        study=study,
        request=request,
        directory=directory if directory is not None and directory.is_dir() else None,
    )


def refuse_recorded_as_finished(prepared: "Prepared") -> None:
    """Refuse a run that says that it is finished, and is asked for nothing more."""
    path = _path_of(prepared)
    end = read_run_record(path).end
    asks_for_more = {"repeats", "budget"} & set(prepared.request.flags)
    if not asks_for_more and end is not None and end.why == "finished" and not is_unfinished(path):
        raise BadInput(f"resume: {path} is finished; a larger --repeats adds launches")


def refuse_finished(prepared: "Prepared") -> None:
    """Refuse a run that is complete."""
    from scalescope.results.run import load_run
    from scalescope.studies.campaign import missing_launches

    if prepared.planned is None:
        return
    path = _path_of(prepared)
    run = load_run(path)
    asked = dataclasses.replace(prepared.plan, continues=False)  # every round, also of a command
    if missing_launches(asked.launches(), run) or _wants_more(prepared.study, run):
        return
    raise BadInput(f"resume: {path} is finished; a larger --repeats adds launches")


def _wants_more(study: Study, run: "Run") -> bool:
    """Whether a study that decides by results what to launch wants anything."""
    from scalescope.studies.campaign import KEPT

    answered = {result.key for result in run.of_status(*KEPT)}
    return any(launch.key not in answered for launch in study.next_launches(run, None))


def to_continue(prepared: "Prepared") -> "Prepared":
    """Planned for the machine that the run was measured on, where that is recorded.

    Refuses what cannot be continued here, as far as the run's files and this system tell.
    """
    path, request = _path_of(prepared), prepared.request
    if request.takes_stored_request:
        refuse_untrusted(path, trusted=request.trust)
    if (path / JOB_REQUEST).is_file():  # the nodes of a job are not this machine
        return prepared
    refuse_in_use(path)
    _refuse_other_machine(path)
    record = read_run_record(path)
    try:
        host = recorded_host(path, repeatable=record.repeatable, ranks=record.attached_ranks)
    except CannotRun:
        return prepared
    from scalescope.studies.execution import check_continues

    prepared = prepared.on(host)
    check_continues(prepared.study, prepared.plan, path)
    return prepared


def _path_of(prepared: "Prepared") -> Path:
    assert prepared.output_dir is not None
    return prepared.output_dir


def _refuse_other_machine(path: Path) -> None:
    """Refuse launches of another machine or torch, by what is known without asking torch."""
    machine = read_environment(path)[0].get("machine")
    if machine is None or not (path / TRIALS).is_file():
        return
    differing = [
        f"{name} ({machine[name]}, now {value})"
        for name, value in machine_here().items()
        if value is not None and name in machine and _comparable(machine[name]) != _comparable(value)
    ]
    if differing:
        raise CannotRun(
            f"--resume: {path} was measured on another machine or torch; these differ: "
            f"{', '.join(differing)}; start a new run"
        )


def machine_here() -> dict[str, Any]:
    """Facts of `Machine` that are known without torch; None is unknown."""
    torch_version = None
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        torch_version = importlib.metadata.version("torch")
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu_model": cpu_model(),
        "cores": usable_cores(),
        "python_version": platform.python_version(),
        "torch_version": torch_version,
    }


def _comparable(value: object) -> object:
    """A version without its build, which torch and its package may name differently."""
    return value.partition("+")[0] if isinstance(value, str) else value
