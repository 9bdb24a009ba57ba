"""Reports of stored runs."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from scalescope import studies
from scalescope.errors import BadInput, CannotRun, ExitCode, ScalescopeError
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.quantities import counted
from scalescope.report.analyzed_run import AnalyzedRun, analyzed_run
from scalescope.report.consistency import consistency_section
from scalescope.report.findings import continuing
from scalescope.report.performance import NOTHING, headline, performance_sections, performance_text
from scalescope.report.results_json import results_json
from scalescope.report.section import Section, ShownCommand
from scalescope.report.trials import failure_section
from scalescope.results.files import to_text
from scalescope.results.run import Run
from scalescope.results.run_commands import PROGRAM, repeating_command
from scalescope.results.run_folder import ENVIRONMENT, PERFORMANCE, RESULTS, find_runs, is_run_folder
from scalescope.results.run_record import resume_command
from scalescope.results.stored.records import read_environment
from scalescope.studies.study import Host, Report, Study

if TYPE_CHECKING:
    from scalescope.results.run import Run

# ---- What every study presents of a stored run besides its own sections


def report_of(
    study: Study | None,
    of: Run | AnalyzedRun,
    sections: tuple[Section, ...],
    next_step: ShownCommand | None = None,
) -> Report:
    """The sections of a study with what all of them have: headline, explanation, files, exit code.

    Without a study, no failure was expected.
    """
    analyzed = analyzed_run(of)
    run = analyzed.run
    return Report(
        sections=(*failure_section(run), *consistency_section(analyzed), *sections),
        explain=lambda: performance_sections(analyzed),
        headline=headline(analyzed) or NOTHING,
        next_step=next_step,
        exit_code=_exit_code(study, run),
        files={
            RESULTS: lambda: to_text(results_json(analyzed)),
            PERFORMANCE: lambda: performance_text(analyzed),
        },
        run=run,
    )


def with_files(report: Report, files: Mapping[str, Callable[[], str]]) -> Report:
    """The report with more files, by name; they are written first."""
    return dataclasses.replace(report, files={**files, **report.files})


def _exit_code(study: Study | None, run: Run) -> int:
    statuses = {
        result.status
        for result in run.results
        if result.stopped_by != "budget" and (study is None or not study.is_expected_failure(result))
    }
    if statuses & {"failed", "oom", "interrupted"}:
        return ExitCode.WORKER_FAILED
    if "hang" in statuses:
        return ExitCode.HANG
    return ExitCode.INVALID if "invalid" in statuses else ExitCode.OK


def is_unstable(run: Run) -> bool:
    """Whether launches of some configuration disagree more than a verdict allows."""
    from scalescope.analysis.configurations import configurations

    return any(configuration.instabilities() for configuration in configurations(run.results))


# ---- Stored runs: the study that made one, what it presents, and how it is explained


def present(run: "Run") -> Report:
    """What a stored run shows, by the study that made it."""
    from scalescope.studies.stored import report_of

    try:
        study = study_of(run)
        if study is not None:
            return study.present(run)
    except (ScalescopeError, ValueError) as error:  # a custom model that is gone: the results are there
        notes = (f"The sections of {run.record.verb} cannot be made: {error}",)
        return dataclasses.replace(report_of(None, run, ()), notes=notes)
    return report_of(None, run, ())


def study_of(run: "Run") -> Study | None:
    """The study that made a run; None where its verb is not known here."""
    kind = find_study(run.record.verb)
    return None if kind is None else kind.from_flags(run.record.flags)


def find_study(verb: str) -> type[Study] | None:
    """The study of a verb: the class in the module of its name, in studies or a folder of it."""
    for package, name in _modules():
        if verb and name == verb:
            module = importlib.import_module(f"{package}.{name}")
            for kind in vars(module).values():
                if isinstance(kind, type) and getattr(kind, "verb", None) == verb:
                    return kind
    return None


def all_studies() -> Iterator[type[Study]]:
    """The studies of all verbs."""
    for _, name in _modules():
        kind = find_study(name)
        if kind is not None:
            yield kind


def _modules() -> Iterator[tuple[str, str]]:
    """The modules of studies and of their folders: (package, name)."""
    for topic in pkgutil.iter_modules(studies.__path__):
        name = f"{studies.__name__}.{topic.name}"
        if not topic.ispkg:
            yield studies.__name__, topic.name
            continue
        for module in pkgutil.iter_modules(importlib.import_module(name).__path__):
            yield name, module.name


def recorded_host(path: Path, *, repeatable: bool, ranks: int | None) -> Host:
    """The host that a run was measured on, from its record."""
    record, _ = read_environment(path)
    try:
        # A run that went on on other hosts has them all, but was planned for those of one start.
        nodes = record["starts"][0] if "starts" in record else record["nodes"]
        machine = Machine.from_json(record["machine"])
        host = Host(machine=machine, nodes=len(nodes), repeatable=repeatable, ranks=ranks)
        return host if ranks is None else dataclasses.replace(host, check=check_of_ranks(ranks))
    except (KeyError, IndexError, TypeError):
        raise CannotRun(f"{path / ENVIRONMENT} does not record where the run was measured") from None


def check_of_ranks(ranks: int) -> Callable[[Trial], None]:
    """What new ranks of torchrun or srun refuse."""
    from scalescope.launch.torchrun.children import check_for_ranks

    return lambda trial: check_for_ranks(trial, ranks)


def explain(path: Path) -> tuple[Section, ...]:
    """The sections that explain a run, for the verb of that name; they end with the next command."""
    from scalescope.report.performance import without_lines
    from scalescope.report.trials import failure_section

    run = run_to_explain(path)
    report = present(run)
    notes = tuple(Section(lines=(warning,)) for warning in (*run.warnings, *report.notes))
    failures = failure_section(run)
    said = tuple(line for section in failures for line in section.lines)
    others = () if run.of_status("ok") else without_lines(said, report.sections)
    return (*notes, *failures, *report.explain(), *others, next_section(report))


def run_to_explain(path: Path) -> "Run":
    """A run that has results; refuses others, and says which command helps."""
    from scalescope.results.run import load_run

    if not path.exists() and path.name == "latest":
        raise BadInput("explain: no run exists under runs/; give a run folder, or create one: scalescope run")
    if not path.exists():
        raise BadInput(f"explain: {path}: no such run folder; scalescope list shows all runs")
    if not is_run_folder(path):
        below = "" if not path.is_dir() or not any(find_runs(path)) else f" {path}"
        raise BadInput(
            f"explain: {path} is not a run folder and contains no traces; scalescope list{below} shows all "
            "runs"
        )
    run = load_run(path)
    if run.warnings and not run.results:
        first, *others = run.warnings
        more = f"; {counted(len(others), 'more line')} cannot be read" if others else ""
        raise BadInput(f"explain: {path} is damaged and has no readable result: {first}{more}")
    if not run.results:
        raise BadInput(f"explain: {path} has no results yet; to continue it: {resume_command(path)}")
    return run


def next_section(report: Report) -> Section:
    """What to do next: what the study advises, and after a change of code the command that measures again."""
    run, step = report.run, report.next_step
    assert run is not None
    if step is None and not run.of_status("ok"):
        step = continuing(run)
    steps = [] if step is None else [dataclasses.replace(step, label=f"Next: {step.label}")]
    if step is None or not step.argv:
        again = repeating_command(run.path, run.record)
        page = ShownCommand(
            label="Next: a page with every figure", argv=(PROGRAM, "report", str(run.path.resolve()))
        )
        steps.append(
            ShownCommand(label="Then measure again", argv=again) if step is not None and again else page
        )
    return Section(commands=tuple(steps))
