"""`report`: from run folders everything a person would show: a page, figures, tables."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalescope.errors import BadInput, ExitCode, StorageError
from scalescope.quantities import counted
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.chapter import Chapter, answer_chapters, with_first_screen
from scalescope.report.chapters import chapters_of
from scalescope.report.findings import first_finding
from scalescope.report.key_figures import trace_figures
from scalescope.report.performance import NOTHING, performance_text
from scalescope.report.render.cells import write_scalars
from scalescope.report.render.drawing import WIDTHS_IN, check_drawing, save
from scalescope.report.render.markdown import markdown
from scalescope.report.render.page import page
from scalescope.report.render.tables import tables
from scalescope.report.section import Section
from scalescope.report.trace.job import headline as traces_headline
from scalescope.report.trace.job import job_figure, traces_verdict
from scalescope.results.files import to_text, write_atomically
from scalescope.results.run import Run, load_run
from scalescope.results.run_folder import DEFAULT_ROOT, PERFORMANCE, RESULTS, find_runs, read_json
from scalescope.results.stored.files import refused_folder
from scalescope.studies.stored import present
from scalescope.studies.traces import are_traces, explain_traces

FIGURES = "figures"
TABLES = "tables"
FORMATS = ("html", FIGURES, "csv", "tex", "md", "txt", "json")
DEFAULT_FORMATS = tuple(name for name in FORMATS if name != FIGURES)  # the page has its figures inside
PAGE = "report.html"
PAGE_WIDTH = "page"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """How a report is to look."""

    formats: tuple[str, ...] = DEFAULT_FORMATS
    title: str | None = None
    datasets: tuple[str, ...] = ()
    skip_epochs: int = 0
    by: str | None = None
    width: str = PAGE_WIDTH
    tensorboard: Path | None = None  # where scalars are to go as well

    def check(self) -> None:
        """Refuse what is not offered."""
        for name in self.formats:
            if name not in FORMATS:
                raise BadInput(f"--format: {name!r} is not one of {', '.join(FORMATS)}")
        if self.width not in WIDTHS_IN:
            raise BadInput(f"--width: {self.width!r} is not one of {', '.join(WIDTHS_IN)}")
        if self.width != PAGE_WIDTH and FIGURES not in self.formats:
            raise BadInput("--width requires --figures")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a report left: its files, the first line, and what could not be read."""

    files: tuple[Path, ...]
    headline: str
    warnings: tuple[str, ...]
    exit_code: int = ExitCode.OK


def report(roots: Sequence[Path], out: Path | None, options: ReportOptions) -> Written:
    """Read the runs, or the traces of a job, and write what is wished for."""
    options.check()
    if are_traces(roots):
        return _report_of_traces(roots, out, options)
    report_input = gather(roots, options)
    chapters = chapters_of(report_input)
    folder = out or _default_folder(report_input)
    files = _written(_texts(report_input, chapters, options), chapters, folder, options)
    if options.tensorboard is not None:
        write_scalars(report_input, options.tensorboard)
    warnings = [warning for analyzed in report_input.analyzed_runs for warning in analyzed.run.warnings]
    failed = [chapter for chapter in chapters if chapter.problem is not None]
    warnings += [f"The chapter {chapter.name} could not be made: {chapter.problem}" for chapter in failed]
    return Written(
        files=tuple(files),
        headline=present(report_input.first.run).headline or NOTHING,
        warnings=tuple(warnings),
        exit_code=ExitCode.INVALID if failed else ExitCode.OK,
    )


def _written(
    texts: dict[str, str], chapters: tuple[Chapter, ...], folder: Path, options: ReportOptions
) -> list[Path]:
    """The files of a report; all that can be written are."""
    try:
        files = [*_figures(chapters, folder, options), *_write(texts, folder)]
    except OSError as error:
        raise StorageError(f"{error.filename or folder}: could not be written: {error.strerror}") from None
    refused = _unwritable(folder / FIGURES, folder / TABLES)
    if refused:
        raise StorageError(f"{refused[0]}; the other files are written")
    return files


def _report_of_traces(roots: Sequence[Path], out: Path | None, options: ReportOptions) -> Written:
    """A page of what a job's traces show: the verdict, a step of every rank, tables, findings."""
    explained = explain_traces(roots)
    job, diagnosis = explained.job, explained.diagnosis
    first = (Section(lines=(traces_verdict(job),)), *first_finding(diagnosis))
    chapters = answer_chapters(first, explained.sections, (job_figure(job),), trace_figures(job, diagnosis))
    texts: dict[str, str] = {}
    title = options.title or f"scalescope: traces of {traces_headline(job)}"
    if "html" in options.formats:
        texts[PAGE] = page(chapters, title, counted(len(job.ranks), "trace"))
    if "json" in options.formats:
        texts["traces.json"] = to_text(explained.data)
    if "md" in options.formats:
        texts["traces.md"] = markdown(explained.sections)
    folder = out or Path("trace-report")
    files = _written(texts, chapters, folder, options)
    return Written(files=tuple(files), headline=traces_headline(job), warnings=())


def page_of(run: Run) -> str:
    """The page of one run, as text; its commands name the run by its whole path."""
    report_input = _input_of([dataclasses.replace(run, path=run.path.absolute())], ReportOptions())
    return page(_with_first_screen(report_input, chapters_of(report_input)), report_input.title, "1 run")


def _with_first_screen(report_input: ReportInput, chapters: tuple[Chapter, ...]) -> tuple[Chapter, ...]:
    return with_first_screen(chapters, report_input.first.run.record.verb)


def gather(roots: Sequence[Path], options: ReportOptions) -> ReportInput:
    """All runs at or below the roots that hold a result, oldest first."""
    paths = [path for root in roots or (DEFAULT_ROOT,) for path in _runs_below(root)]
    runs = [load_run(path) for path in dict.fromkeys(path.resolve() for path in paths)]
    if not any(run.of_status("ok") for run in runs):
        where = ", ".join(map(str, roots or (DEFAULT_ROOT,)))
        raise BadInput(f"report: {where}: {_why_nothing(runs)}")
    return _input_of(runs, options)


def _input_of(runs: Sequence[Run], options: ReportOptions) -> ReportInput:
    finished = sorted(
        (run for run in runs if run.results),
        key=lambda run: min(result.started_at for result in run.results),
    )
    analyzed_runs = _analyzed_runs(finished)
    what = analyzed_runs[0].name if len(analyzed_runs) == 1 else f"{len(analyzed_runs)} runs"
    title = options.title or f"scalescope: {what}"
    report_input = ReportInput(analyzed_runs, title, options.datasets, options.skip_epochs, options.by)
    known = ReportInput(analyzed_runs, title).dataset_names
    for name in options.datasets:
        if name not in known:
            raise BadInput(f"--datasets: no run has {name!r}; there are {', '.join(known) or 'none'}")
    if options.by is not None and not any(
        options.by in configuration.trial.settings for configuration in report_input.measured
    ):
        raise BadInput(f"--by: no trial has a setting {options.by!r}")
    return report_input


def _analyzed_runs(runs: Sequence[Run]) -> tuple[AnalyzedRun, ...]:
    """Runs by the names of their folders, or by whole paths where two are the same."""
    names = Counter(run.path.name for run in runs)
    return tuple(AnalyzedRun(run, str(run.path) if names[run.path.name] > 1 else "") for run in runs)


def _why_nothing(runs: Sequence[Run]) -> str:
    """Why there is nothing to show, in half a sentence."""
    failed = [result for run in runs for result in run.results]
    if failed:
        return f"every launch failed; the first: {' '.join((failed[0].reason or failed[0].status).split())}"
    warnings = [warning for run in runs for warning in run.warnings]
    return warnings[0] if warnings else "contains no run with results; scalescope run creates one"


def _runs_below(root: Path) -> list[Path]:
    if not root.exists():
        raise BadInput(f"report: {root}: no such run folder")
    runs = list(find_runs(root.resolve() if root.is_symlink() else root))
    if not runs:
        raise BadInput(f"report: {root}: contains no run")
    return runs


def _default_folder(report_input: ReportInput) -> Path:
    """Beside a single run's own files, or under the folder that holds all runs."""
    paths = [analyzed.run.path for analyzed in report_input.analyzed_runs]
    return paths[0] if len(paths) == 1 else paths[-1].parent / "report"


def _figures(chapters: tuple[Chapter, ...], folder: Path, options: ReportOptions) -> list[Path]:
    if FIGURES not in options.formats:
        return []
    check_drawing()
    target = folder / FIGURES
    if refused_folder(target) is not None:  # named by `_unwritable`
        return []
    target.mkdir(parents=True, exist_ok=True)
    return [
        path
        for chapter in chapters
        for figure in chapter.figures
        for path in save(figure, target, options.width)
    ]


def _texts(
    report_input: ReportInput, chapters: tuple[Chapter, ...], options: ReportOptions
) -> dict[str, str]:
    """File name → text, of everything but figures."""
    texts: dict[str, str] = {}
    if "html" in options.formats:
        source = counted(len(report_input.analyzed_runs), "run")
        texts[PAGE] = page(_with_first_screen(report_input, chapters), report_input.title, source)
    made = tables(report_input)
    wished = {name: text for name, text in made.items() if name.rpartition(".")[2] in options.formats}
    texts |= {f"{TABLES}/{name}": text for name, text in wished.items()}
    if "txt" in options.formats:
        analyzed_runs = [*report_input.scaling_runs, *(s for s in report_input.analyzed_runs if not s.scales)]
        parts = [performance_text(analyzed) for analyzed in analyzed_runs]
        named = [f"{analyzed.name}\n\n{text}" for analyzed, text in zip(analyzed_runs, parts, strict=True)]
        texts[PERFORMANCE] = parts[0] if len(parts) == 1 else "\n".join(named)
    if "json" in options.formats:
        summaries = {analyzed.name: _summary(analyzed) for analyzed in report_input.analyzed_runs}
        texts["report.json"] = to_text({"title": report_input.title, "runs": summaries})
    return texts


def _summary(analyzed: AnalyzedRun) -> object:
    """A run's own results.json; None where it is missing, broken, or is not JSON."""
    summary = read_json(analyzed.run.path / RESULTS)
    try:
        to_text(summary)
    except ValueError:
        return None
    return summary


def _write(texts: dict[str, str], folder: Path) -> list[Path]:
    """Write all files but those below a folder that is a link."""
    paths = [
        path for name in texts if (path := folder / name).parent == folder or not _unwritable(path.parent)
    ]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, texts[str(path.relative_to(folder))])
    return paths


def _unwritable(*folders: Path) -> list[str]:
    """What is in the place of folders that files go to, in words."""
    return [problem for folder in folders if (problem := refused_folder(folder)) is not None]
