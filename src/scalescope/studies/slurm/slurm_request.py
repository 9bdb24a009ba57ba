"""What is asked of a SLURM job: its settings and its request, where it writes, and the script to submit."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalescope.catalog.setting import Scalar, parse_value, settings_of
from scalescope.catalog.slurm import Slurm
from scalescope.errors import BadInput
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.given import Entries, Given
from scalescope.experiment.record import to_mapping, to_yaml
from scalescope.interpreter import python_module
from scalescope.launch.slurm.script import SlurmJob, sbatch_script
from scalescope.results.run_folder import new_run_path, read_json
from scalescope.secret_variables import looks_secret
from scalescope.studies.execution import check_same_request
from scalescope.studies.flags import deciding_flags, written_flags
from scalescope.studies.prepared import Prepared
from scalescope.studies.stored import all_studies
from scalescope.studies.study import Study

FOLDER = "slurm"  # of the run folder: what was submitted, and what the job said
REQUEST, SCRIPT, JOB = "request.yaml", "job.sh", "job.json"
_LARGEST_TEMPLATE_BYTES = 1 << 20
_MOST_TURNS = 500  # launches of a search, which ends before by its budget or for want of levers


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRun:
    """A run that is ready to be submitted."""

    prepared: Prepared
    path: Path
    job: SlurmJob
    script: str
    yaml: str
    queue_timeout_s: float | None = None  # how long it may wait in the queue
    asked: dict[str, Any]  # what --resume needs to submit it again
    notes: tuple[str, ...] = ()  # what a person should know before it is submitted
    stored_shell_text: tuple[str, ...] = ()  # of the folder, that the job would run


def is_job_folder(path: Path) -> bool:
    """Whether a run folder was submitted as a job."""
    return (path / FOLDER / REQUEST).is_file()


def is_for_slurm(prepared: Prepared, job_flags: Entries, setup: tuple[str, ...], *, is_rank: bool) -> bool:
    """Whether a job is to be submitted, or one of a job's runs continued."""
    study, request = prepared.study, prepared.request
    if is_rank:
        refuse_job_in_job(job_flags)
    if is_rank or request.is_shared:  # a file may ask for the job that this is
        return False
    typed = slurm_from(job_flags).launcher if "launcher" in job_flags else None
    written = request.of_job()
    launcher = typed or (slurm_from(written).launcher if "launcher" in written else None)
    if launcher == "slurm" and not study.runs_on_slurm:
        origin = written["launcher"][0].origin
        able = ", ".join(sorted(kind.verb for kind in all_studies() if kind.runs_on_slurm))
        raise BadInput(f"{origin}: {study.verb} cannot be submitted as a job; {able} can")
    chosen = launcher == "slurm" or (launcher is None and _continues_job(prepared))
    given = [*job_flags, *(["setup"] if setup else [])]
    if not chosen and set(given) - {"launcher"}:
        name = next(name for name in given if name != "launcher")
        raise BadInput(f"--{name.replace('_', '-')} requires --launcher slurm")
    if chosen and "--nsys" in study.flags():
        raise BadInput("--nsys cannot be used with --launcher slurm; use --launcher local")
    return chosen


def refuse_job_in_job(job_flags: Entries) -> None:
    """Refuse to submit a job as a rank of one."""
    if "launcher" in job_flags and slurm_from(job_flags).launcher == "slurm":
        raise BadInput("--launcher slurm submits a job; it cannot be used inside one")


def _continues_job(prepared: Prepared) -> bool:
    """Whether --resume would continue a run of this verb that SLURM began."""
    path = prepared.output_dir
    if not prepared.request.resume or path is None:
        return False
    return is_job_folder(path) and _record_of(path).get("verb") == prepared.study.verb


def prepared_job(prepared: Prepared, flags: Entries, setup: tuple[str, ...]) -> SlurmRun:
    """Check everything that can be checked here; `flags` and `setup` are those of the job."""
    study, request, experiment = prepared.study, prepared.request, prepared.experiment
    written = request.of_job()
    setup = setup or tuple(given.text for given in written.pop("setup", ()))
    flags = {**written, **flags}
    named = prepared.output_dir
    resumed = named.absolute() if request.resume and named is not None else None
    before = {} if resumed is None else _record_of(resumed)
    if resumed is not None:
        _check_as_begun(prepared, resumed)
    shell_text = _stored_shell_text(before, flags, setup)
    template = before.get("template") if "slurm_template" not in flags else None
    flags = {**_entries(before.get("flags")), **flags}
    asked = slurm_from(flags)
    to_store: dict[str, Any] = {
        "verb": study.verb,
        "verb_flags": list(study.flags()),
        "flags": {name: values[0].text for name, values in flags.items()},
        "setup": list(setup or _texts(before.get("setup"))),
        "directory": str(before.get("directory", Path.cwd())),  # files of the request are named from there
        "template": template if isinstance(template, str) else _template(asked),
    }
    if experiment.measuring.redact_env:
        _refuse_secrets(to_store["setup"])
    # What no job can have is refused before a folder is made.
    _script(_job(prepared, asked, to_store, resumed or _new_path(prepared, makes=False)), to_store)
    path = resumed or _new_path(prepared, makes=not request.dry_run)
    job = _job(prepared, asked, to_store, path)
    return SlurmRun(
        prepared=prepared,
        path=path,
        job=job,
        script=_script(job, to_store),
        yaml=to_yaml(experiment, study.flags()),
        queue_timeout_s=asked.queue_timeout,
        asked=to_store,
        notes=_notes(study, experiment, job),
        stored_shell_text=shell_text,
    )


def _job(prepared: Prepared, asked: Slurm, stored: dict[str, Any], path: Path) -> SlurmJob:
    """The job of a run in the folder `path`; refuses ranks that it cannot have."""
    study, experiment = prepared.study, prepared.experiment
    tasks_per_node = _tasks_per_node(asked, experiment)
    _check_ranks(experiment, asked.nodes * tasks_per_node)
    return SlurmJob(
        name=experiment.measuring.name or f"scalescope-{study.verb}",
        nodes=asked.nodes,
        tasks_per_node=tasks_per_node,
        cpus_per_task=asked.cpus_per_task or (4 if asked.gpus_per_node else 1),
        gpus_per_node=asked.gpus_per_node,
        partition=asked.partition,
        account=asked.account,
        time=asked.time,
        setup=tuple(stored["setup"]),
        run_folder=path,
        output=path / FOLDER,
        directory=Path(stored["directory"]),
        command=_command(prepared, path),
        launches=_MOST_TURNS if study.takes_turns else experiment.measuring.repeats,
        in_turn=study.takes_turns,
        of_command=experiment.is_command,
    )


def _script(job: SlurmJob, stored: dict[str, Any]) -> str:
    return sbatch_script(job, stored["template"])


def _refuse_secrets(setup: Iterable[str]) -> None:
    """Refuse lines whose secrets the script of the job would store."""
    for number, line in enumerate(setup, start=1):
        if looks_secret("", line):
            raise BadInput(
                f"--setup: line {number} holds a secret, which the job's script would store; export the "
                "variable before you submit, which jobs inherit, or add --no-redact-env"
            )


def _stored_shell_text(before: dict[str, Any], flags: Entries, setup: tuple[str, ...]) -> tuple[str, ...]:
    """What a shell would read of a stored job, and was not given anew."""
    stored = before.get("flags")
    file = stored.get("slurm_template") if isinstance(stored, dict) else None
    template = before.get("template") or (file is not None and str(file) != "none")
    names = {"setup": bool(_texts(before.get("setup"))) and not setup}
    names["template"] = bool(template) and "slurm_template" not in flags
    return tuple(name for name, is_stored in names.items() if is_stored)


def _notes(study: Study, experiment: Experiment, job: SlurmJob) -> tuple[str, ...]:
    """That ranks share what one task gets, and which flags give them more."""
    ranks = max(experiment.asked("world_size", 1))
    ranks = max(2, ranks) if study.compares_ranks else ranks
    if job.tasks > 1 or ranks <= (job.gpus_per_node or job.cpus_per_task):
        return ()
    shared = "1 GPU" if job.gpus_per_node else f"{job.cpus_per_task} core{'s'[: job.cpus_per_task > 1]}"
    return (
        f"This job has one task with {shared}, which {ranks} ranks would share: it cannot show scaling. "
        "Add --gpus-per-node N (one rank per GPU), --tasks-per-node N (ranks on the CPU) or --nodes N.",
    )


def slurm_from(flags: Entries) -> Slurm:
    """The job's settings, checked."""
    values: dict[str, Scalar] = {}
    for setting in settings_of(Slurm):
        given = flags.get(setting.name)
        default = setting.default
        assert default is None or isinstance(default, int | str)
        if given and len(given) > 1:
            raise BadInput(f"{given[0].origin}: takes one value, not a list")
        values[setting.name] = parse_value(setting, given[0].text, given[0].origin) if given else default
    return Slurm(**values)  # type: ignore[arg-type]


def job_id_of(path: Path) -> str | None:
    """The number of a run's job; None where it was never submitted."""
    number = str(_record_of(path).get("job_id", ""))
    return number if number.isdecimal() else None


def submitted_flags(path: Path) -> tuple[str, ...] | None:
    """The verb's own flags of a submitted run; None where it is not one, or does not say."""
    flags = _record_of(path).get("verb_flags")
    return None if not isinstance(flags, list) else _texts(flags)


def _record_of(path: Path) -> dict[str, Any]:
    """What was asked for when a run was submitted, or tried to be."""
    record = read_json(path / FOLDER / JOB)
    return record if isinstance(record, dict) else {}


def _entries(stored: object) -> Entries:
    """What was asked for when the run began."""
    if not isinstance(stored, dict):
        return {}
    return {str(name): (Given(str(text), f"{JOB}: {name}"),) for name, text in stored.items()}


def _texts(stored: Any) -> tuple[str, ...]:
    """A list of texts as it was stored; anything else is none."""
    return tuple(text for text in stored if isinstance(text, str)) if isinstance(stored, list) else ()


def _new_path(prepared: Prepared, *, makes: bool) -> Path:
    return (prepared.output_dir or new_run_path(prepared.study.verb, makes=makes)).absolute()


def _check_as_begun(prepared: Prepared, path: Path) -> None:
    """Refuse a request that asks for something else than the one that began the run."""
    study, stored = prepared.study, path / FOLDER / REQUEST
    if not stored.is_file():
        raise BadInput(f"--resume: {path} has no run started with --launcher slurm")
    check_same_request(stored, to_mapping(prepared.experiment))
    before = submitted_flags(path) or ()
    may_differ = study.flags_may_differ
    if deciding_flags(before, may_differ) != deciding_flags(study.flags(), may_differ):
        begun = " ".join(("scalescope", study.verb, *before))
        raise BadInput(f"--resume: {path} was started with a different command: {begun}")


def _tasks_per_node(asked: Slurm, experiment: Experiment) -> int:
    if asked.gpus_per_node and asked.tasks_per_node:
        raise BadInput(
            "--gpus-per-node starts one rank per GPU, --tasks-per-node is for the CPU; give only one"
        )
    if "cuda" in experiment.asked("device") and not asked.gpus_per_node:
        raise BadInput("--device cuda requires --gpus-per-node; without it the job gets no GPU")
    return asked.gpus_per_node or asked.tasks_per_node or 1


def _check_ranks(experiment: Experiment, tasks: int) -> None:
    most = max(experiment.asked("world_size", 1))
    if most > tasks > 1:  # a step of one task starts ranks of its own, as on any machine
        raise BadInput(f"--world-size: {most} ranks do not fit in a job of {tasks} tasks; request more nodes")
    if any(experiment.asked("env")) and not experiment.is_command:
        raise BadInput("--env cannot be used with --launcher slurm; add --setup 'export NAME=VALUE'")
    if any(experiment.asked("link")) or any(experiment.asked("split_gpu")):
        raise BadInput("--link and --split-gpu cannot be used with --launcher slurm; use --launcher local")


def _command(prepared: Prepared, path: Path) -> tuple[str, ...]:
    """What a step runs; a job that SLURM sends back to the queue keeps its budget, a new one gets its own."""
    study = prepared.study
    start = python_module("scalescope", study.verb, str(path / FOLDER / REQUEST))
    flags = study.flags()
    if study.flags_may_differ:  # such as a gate: a single step cannot judge by it
        flags = written_flags(deciding_flags(flags, study.flags_may_differ))
    words = [*start, *flags, f"--output-dir={path}", *(("--yes",) if prepared.request.yes else ())]
    if prepared.experiment.measuring.budget is not None:
        words.append(f"--budget-since={datetime.now(UTC).isoformat(timespec='milliseconds')}")
    return tuple(words)


def _template(asked: Slurm) -> str | None:
    """The site's own script, where one is named."""
    if asked.slurm_template is None:
        return None
    path = Path(asked.slurm_template)
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_TEMPLATE_BYTES + 1)
        if len(content) > _LARGEST_TEMPLATE_BYTES:
            raise BadInput(f"--slurm-template: {path} is too large for a script")
        return content.decode("utf-8")
    except OSError as error:
        raise BadInput(f"--slurm-template: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"--slurm-template: {path} is not a text file") from None
