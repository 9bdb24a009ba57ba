"""The path every measuring verb takes: request, plan, campaign, summary."""

import contextlib
import dataclasses
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from scalescope.errors import BadInput, CannotRun, ExitCode, Interrupted
from scalescope.experiment.record import neutral_lines, to_yaml
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Launcher, RanksLost
from scalescope.report.machine import format_lines
from scalescope.report.performance import headline, performance_text
from scalescope.report.results_json import results_json
from scalescope.report.section import Section
from scalescope.report.trials import failure_section, is_answer, plan_section
from scalescope.results.files import to_text
from scalescope.results.result import Result
from scalescope.results.run import Run, load_run
from scalescope.results.run_folder import (
    DEFAULT_ROOT,
    ENVIRONMENT,
    EXPERIMENT,
    PERFORMANCE,
    RESULTS,
    RunFolder,
    new_run_path,
    point_latest_at,
)
from scalescope.studies.campaign import KEPT, CampaignWatcher, More, Plan, Verdict, run_campaign
from scalescope.studies.environment import continued_environment, environment_record
from scalescope.studies.estimate import estimate_s
from scalescope.studies.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyReport:
    """What a study leaves for the person: sections to show, where the files are, and the exit code."""

    sections: tuple[Section, ...]
    path: Path | None = None
    next_step: str | None = None
    exit_code: int = 0
    headline: str | None = None  # the performance report's first line
    page: Path | None = None  # the report, where one was made
    run: Run | None = field(default=None, repr=False)
    missing: int = 0  # launches of the plan that have no answer yet
    planned: tuple[tuple[Trial, int], ...] = ()  # what --dry-run would launch


def run_study(
    request: Request,
    plan: Plan,
    launcher: Launcher,
    watcher: CampaignWatcher,
    sections: Callable[[Run], tuple[Section, ...]],
    next_step: Callable[[Run], str | None],
    files: Callable[[Run], dict[str, str]] = lambda run: {},
    more: More = lambda run: (),
    heard: Callable[[Result], None] = lambda result: None,
    answers: Callable[[Result], bool] = is_answer,
    verdict: Verdict = lambda run: None,
) -> StudyReport:
    """Measure a plan and what `more` asks for then, write the summary, and show `sections` of it.

    A failed launch of which `answers` is true is what was to be found out: the run ends well all the same.
    """
    if request.only_launches is not None:
        plan = dataclasses.replace(plan, only=request.only_launches, budget_since=request.budget_since)
        request = dataclasses.replace(request, resume=_is_begun(plan))
        if plan.experiment.measuring.output_dir is None:
            raise BadInput("--only-launch needs --output-dir, which all commands of the run share")
    elif not launcher.repeatable:
        plan = _launched_once(plan)
    for note in plan.notes:
        watcher.noted(note)
    if request.dry_run:
        return _only_planned(plan, watcher)
    for trial in plan.all_trials:
        launcher.check(trial)
    folder, plan = _open_folder(request, plan)
    try:
        folder.write(EXPERIMENT, to_yaml(plan.experiment, request.words))
        record = environment_record(folder.path, plan, launcher, resume=request.resume)
        if record is not None:
            folder.write(ENVIRONMENT, to_text(record))
        notes = run_campaign(plan, launcher, folder, watcher, more, heard, verdict)
        run = _write_summary(folder, plan)
        for name, text in files(run).items():
            folder.write(name, text)
        notes += _write_report(folder, run)
    except BaseException as error:
        _say_what_is_kept(error, request, folder.path)
        with contextlib.suppress(Exception):  # what stopped us is what the person must hear of
            _write_summary(folder, plan)
        raise
    finally:
        folder.close()
    for note in (*notes, *run.warnings):
        watcher.noted(note)
    shown = (*sections(run), *failure_section(run))
    return StudyReport(
        sections=shown,
        path=folder.path,
        next_step=next_step(run),
        exit_code=_exit_code(run, request.strict, answers),
        headline=headline(run),
        run=run,
        missing=_missing(plan, run),
    )


def _say_what_is_kept(error: BaseException, request: Request, path: Path) -> None:
    """Let what stopped a run name the command that goes on with it."""
    words = shlex.join((request.verb, *request.words, "--resume", "--output-dir", str(path)))
    kept = f"finished launches are kept; scalescope {words} goes on"
    if isinstance(error, Interrupted):
        error.kept = kept
    if isinstance(error, RanksLost):
        error.args = (f"{error}; {kept}",)


def _only_planned(plan: Plan, watcher: CampaignWatcher) -> StudyReport:
    """What --dry-run shows: the trials and how long they take."""
    repeats, budget = plan.experiment.measuring.repeats, plan.experiment.measuring.budget
    seconds = estimate_s(plan.trials, repeats) + estimate_s(plan.once, 1)
    if budget is not None and budget < seconds:
        watcher.noted(f"The budget of {budget:g} s would end this early.")
    formats = format_lines(plan.machine, plan.all_trials)
    shown = plan_section(plan.trials, repeats, seconds, plan.once, formats)
    launches = tuple(plan.launches())
    return StudyReport(sections=(shown,), missing=len(launches), planned=launches)


def _is_begun(plan: Plan) -> bool:
    """Whether another command of a shared run has begun it."""
    given = plan.experiment.measuring.output_dir
    return given is not None and (Path(given) / EXPERIMENT).is_file()


def _missing(plan: Plan, run: Run) -> int:
    """Launches without an answer; a trial that was given up on is not waited for."""
    answered = {result.key for result in run.of_status(*KEPT)}
    given_up = {result.trial_id for result in run.of_status("oom", "invalid")}
    return sum(
        (trial.trial_id, launch) not in answered and trial.trial_id not in given_up
        for trial, launch in plan.launches()
    )


def _write_summary(folder: RunFolder, plan: Plan) -> Run:
    """Rebuild results.json from what is there; a run that is stopped has a summary too."""
    run = load_run(folder.path)
    folder.write(RESULTS, to_text(results_json(run, plan.experiment)))
    return run


def summarise_again(folder: RunFolder, plan: Plan) -> None:
    """Bring what a folder says of itself up to the launches it holds now."""
    _write_report(folder, _write_summary(folder, plan))


def _write_report(folder: RunFolder, run: Run) -> list[str]:
    """The report in words; it is made of what is stored, so a failure costs nothing but itself."""
    try:
        folder.write(PERFORMANCE, performance_text(run))
    except Exception as error:
        return [f"{PERFORMANCE} could not be written: {error!r}"]
    return []


def _launched_once(plan: Plan) -> Plan:
    """Attached ranks are one set of processes: more launches of them would not be independent."""
    if plan.experiment.measuring.repeats == 1:
        return plan
    once = dataclasses.replace(plan.experiment.measuring, repeats=1)
    note = (
        "Attached ranks make one launch: no interval. --launcher slurm gets one, or this command for each of "
        "--only-launch 0, 1, 2 with one --output-dir and --repeats 3."
    )
    return dataclasses.replace(
        plan,
        experiment=dataclasses.replace(plan.experiment, measuring=once),
        notes=(*plan.notes, note),
    )


def _open_folder(request: Request, plan: Plan) -> tuple[RunFolder, Plan]:
    """The run's folder, and the plan as it is carried out there."""
    given = plan.experiment.measuring.output_dir
    path = Path(given) if given else _default_path(request)
    if request.resume and not (path / EXPERIMENT).is_file():
        raise BadInput(f"--resume: {path} holds no run to continue")
    if request.resume:
        wanted = to_yaml(plan.experiment, request.words)
        check_same_request(path / EXPERIMENT, wanted, neutral_lines(request.benchmark))
        plan = dataclasses.replace(plan, environment=continued_environment(path, plan.machine))
    folder = RunFolder.open(path, resume=request.resume)
    if not given:
        point_latest_at(path)
    return folder, plan


def _default_path(request: Request) -> Path:
    if not request.resume:
        return new_run_path(request.verb)
    latest = DEFAULT_ROOT / "latest"
    if not latest.exists():
        raise BadInput("--resume: there is no run under runs/; name its folder with --output-dir")
    return latest.resolve()


def check_same_request(stored: Path, wanted: str, neutral: set[str]) -> None:
    """A run is continued by the request that began it; only the number of repeats may grow.

    Settings added since are at their neutral value in it, so `neutral` lines say nothing.
    """
    before = _comparable(stored.read_text(encoding="utf-8")) - neutral
    now = _comparable(wanted) - neutral
    if before != now:
        begun = next((line.lstrip("# ") for line in before - now if line.startswith("#")), "")
        keys = {
            f"the verb or its own flags (begun as '{begun}')"
            if line.startswith("#")
            else line.partition(":")[0]
            for line in before ^ now
        }
        raise BadInput(
            f"--resume: {stored.parent} was asked for otherwise; these differ: {', '.join(sorted(keys))}"
        )


def _comparable(text: str) -> set[str]:
    free = ("repeats:", "budget:", "name:", "window:", "init_timeout:", "warmup_timeout:", "stall_timeout:")
    return {line for line in text.splitlines() if not line.startswith((*free, "teardown"))}


def _exit_code(run: Run, strict: bool, answers: Callable[[Result], bool]) -> int:
    statuses = {result.status for result in run.results if not answers(result)}
    if statuses & {"failed", "oom"}:
        return ExitCode.WORKER_FAILED
    if "hang" in statuses:
        return ExitCode.HANG
    if "invalid" in statuses:
        return ExitCode.INVALID
    if not run.results:
        raise CannotRun("nothing was measured")
    return ExitCode.INVALID if strict and _is_unstable(run) else ExitCode.OK


def _is_unstable(run: Run) -> bool:
    from scalescope.analysis.configurations import configurations

    return any(configuration.instabilities() for configuration in configurations(run.results))
