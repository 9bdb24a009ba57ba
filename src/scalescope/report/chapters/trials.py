"""Trials: every launch, as it was measured."""

from scalescope.analysis.launches import summarise
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.chapter import Chapter
from scalescope.report.commands import units_of
from scalescope.report.numbers import MISSING, milliseconds, significant
from scalescope.report.section import Section, Table
from scalescope.report.varied import disambiguate
from scalescope.results.result import Result
from scalescope.results.run import Run

_MOST = 2000
_COLUMNS = ("run", "trial", "launch", "configuration", "status", "step ms", "{}/s", "duration s", "reason")
_LEFT = frozenset(("run", "trial", "configuration", "status", "reason"))


def chapter(report_input: ReportInput) -> Chapter | None:
    pairs = [
        (analyzed, result)
        for analyzed in report_input.analyzed_runs
        for result in (*analyzed.run.results, *analyzed.run.replaced)
    ]
    if not pairs:
        return None
    names = {analyzed.name: _names(analyzed.run) for analyzed in report_input.analyzed_runs}
    rows = tuple(
        _row(analyzed, result, names[analyzed.name][result.trial_id]) for analyzed, result in pairs[:_MOST]
    )
    left = len(pairs) - len(rows)
    lines = (
        (f"{left:,} more launches are in trials.jsonl and tables/comprehensive_summary.csv.",) if left else ()
    )
    measured = [member for analyzed in report_input.analyzed_runs for member in analyzed.measured]
    columns = tuple(name.format(units_of(measured)) for name in _COLUMNS)
    table = Table(columns=columns, rows=rows, left=_LEFT)
    warnings = tuple(
        warning for analyzed in report_input.analyzed_runs for warning in _warnings(analyzed.run)
    )
    section = Section(table=table, lines=lines, details=warnings)
    return Chapter(name="trials", title="All launches", order=120, sections=(section,))


def _names(run: Run) -> dict[str, str]:
    """The name of every trial: its label with its ablation, and what differs between equal labels."""
    trials = {result.trial_id: result.trial for result in (*run.results, *run.replaced)}
    unique = list(trials.values())
    labels = disambiguate([trial.label for trial in unique], unique, [str(trial.device) for trial in unique])
    return dict(zip(trials, labels, strict=True))


def _row(analyzed: AnalyzedRun, result: Result, name: str) -> tuple[str, ...]:
    step_s, rate = _speed(result)
    return (
        analyzed.name,
        result.trial_id,
        str(result.launch),
        name,
        _status(analyzed.run, result),
        MISSING if step_s is None else milliseconds(step_s),
        MISSING if rate is None else significant(rate, 4),
        significant(result.duration_s),
        result.reason or "",
    )


def _status(run: Run, result: Result) -> str:
    """How the launch ended, and whether other load disturbed it."""
    if not result.is_disturbed:
        return result.status
    repeated = any(result is other for other in run.replaced)
    return f"{result.status}, disturbed{' and repeated' if repeated else ''}"


def _speed(result: Result) -> tuple[float | None, float | None]:
    """Mean step time and throughput of a training launch."""
    if result.status != "ok" or not result.trial.is_training:
        return None, None
    per_rank = [record.samples["step_time_s"] for record in result.ranks]
    window_s = max(sum(times) for times in per_rank)
    step_s = window_s / len(per_rank[0])
    if result.trial.is_command:
        return step_s, summarise(result).samples_per_s
    return step_s, result.trial.samples_per_step / step_s


def _warnings(run: Run) -> tuple[str, ...]:
    return run.warnings
