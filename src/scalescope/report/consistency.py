"""Consistency: whether the parts of a report say the same about a run.

Table, waterfall, breakdown, findings and prediction are made by different functions. Where two of them give
different figures for one thing, one of them is wrong, whatever the run is like: a fault of scalescope, which
tests look for in every run they have, and which a report states if it happens.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from scalescope.analysis.prediction.answer import PredictionAnswer, is_contradicted
from scalescope.analysis.prediction.forecast import most_worth
from scalescope.analysis.scaling.rows import ScalingRow
from scalescope.analysis.training.step_waterfall import StepWaterfall
from scalescope.diagnose.finding import Finding
from scalescope.report.analyzed_run import AnalyzedRun
from scalescope.report.numbers import counted, in_ms, percent
from scalescope.report.section import Section

_ROUNDING = 1e-6
_SHOWN = 0.01  # of the ranks, or of a step: a difference that the rounding of two figures may make


def consistency_section(analyzed: AnalyzedRun) -> tuple[Section, ...]:
    """A line for every disagreement; empty for a report that agrees with itself."""
    return disagreement_section(disagreements(analyzed))


def disagreement_section(found: Iterable[str]) -> tuple[Section, ...]:
    """The same of disagreements that are known."""
    lines = tuple(f"This report contradicts itself: {line}" for line in found)
    return (Section(lines=(*lines, "This is a bug in scalescope; please report it.")),) if lines else ()


def disagreements(analyzed: AnalyzedRun) -> tuple[str, ...]:
    """What two parts of the report say differently, in words."""
    return tuple(line for check in _CHECKS for line in check(analyzed))


def _waterfalls_add_up(analyzed: AnalyzedRun) -> Iterator[str]:
    """What is delivered and lost is N ranks; the parts of a step are the step."""
    for row in analyzed.rows:
        if row.waterfall is not None:
            total = math.fsum(segment.value for segment in row.waterfall.segments)
            if abs(total - row.ranks) > _ROUNDING * row.ranks:
                yield f"the waterfall of {_name(row)} adds up to {total:.2f} ranks."
    for facts in analyzed.steps:
        if facts.waterfall is not None:
            total_s = math.fsum(term.time_s.value for term in facts.waterfall.terms)
            if abs(total_s - facts.waterfall.step_s) > _SHOWN * facts.waterfall.step_s:
                yield (
                    f"the parts of a step of {facts.about} add up to {in_ms(total_s)} of "
                    f"{in_ms(facts.waterfall.step_s)}."
                )


def _table_and_waterfall(analyzed: AnalyzedRun) -> Iterator[str]:
    """The speedup of the table is what the waterfall delivers."""
    for row in analyzed.rows:
        if row.waterfall is None or row.is_baseline or row.baseline_ranks != 1:
            continue
        if abs(row.speedup.value - row.waterfall.delivered) > _SHOWN * row.ranks:
            yield (
                f"the table says {row.speedup.value:.2f}× for {_name(row)}, its waterfall delivers "
                f"{row.waterfall.delivered:.2f} ranks."
            )


def _findings_and_terms(analyzed: AnalyzedRun) -> Iterator[str]:
    """No finding costs more than the term that it explains, or than the step."""
    rows = {row.trial.trial_id: row for row in analyzed.rows}
    for finding in analyzed.diagnosis.findings:
        row = rows.get(finding.trial_id)
        if row is None or row.waterfall is None or not finding.terms or finding.cost_s is not None:
            continue  # what costs time of a step explains terms of the step
        terms = [row.waterfall.term(name) for name in finding.terms]
        known = [term.lost.value for term in terms if term is not None and term.lost is not None]
        most = math.fsum(max(0.0, lost) for lost in known)
        if known and finding.lost > most + _SHOWN * row.ranks:
            yield (
                f"{finding.rule} costs {finding.lost:.2f} of {counted(row.ranks, 'rank')}, and the "
                f"waterfall has {most:.2f} for {' and '.join(finding.terms)}."
            )
    for facts in analyzed.steps:
        if facts.waterfall is not None:
            yield from _shared_terms(facts.waterfall, _about(analyzed, facts.trial.trial_id))
        for finding in _about(analyzed, facts.trial.trial_id):
            if finding.cost_s is not None and finding.cost_s > (1.0 + _SHOWN) * facts.step_s:
                yield f"{finding.rule} costs {in_ms(finding.cost_s)} of a step of {in_ms(facts.step_s)}."


def _shared_terms(waterfall: StepWaterfall, findings: Sequence[Finding]) -> Iterator[str]:
    """All findings about some terms of a step cost together at most what these are."""
    names = {term.name for term in waterfall.terms}
    explained = [finding for finding in findings if finding.cost_s is not None and names & {*finding.terms}]
    for finding in explained:
        terms = {*finding.terms}
        inside = [other for other in explained if {*other.terms} <= terms]
        cost_s = math.fsum(other.cost_s or 0.0 for other in inside)
        most_s = math.fsum(waterfall.time_s(name) for name in terms)
        if cost_s > most_s + _SHOWN * waterfall.step_s:
            rules = " and ".join(other.rule for other in inside)
            yield f"{rules} cost {in_ms(cost_s)}, and the step has {in_ms(most_s)} for them."


def _order_and_costs(analyzed: AnalyzedRun) -> Iterator[str]:
    """Causes stand in the order of what they cost, but for what leads and what is only a symptom."""
    shares = [f.share for f in analyzed.diagnosis.findings if not f.leads and not f.symptom]
    if any(later > earlier for earlier, later in itertools.pairwise(shares)):
        yield "findings are not sorted by cost."


def _predictions(analyzed: AnalyzedRun) -> Iterator[str]:
    return prediction_disagreements(analyzed.predicted.answers)


def prediction_disagreements(answers: Iterable[PredictionAnswer]) -> Iterator[str]:
    """Where a job as it was measured is predicted: measured sizes are inside of their intervals, or the
    prediction says that they are not."""
    for answer in answers:
        if answer.contradiction is not None:
            beyond = [row for row in answer.predictions if row.setup.world_size > answer.contradiction.ranks]
            if beyond:
                yield f"{counted(len(beyond), 'size')} is predicted beyond a contradiction."
            continue
        if answer.most_worth != most_worth(answer.worth):
            yield f"{answer.most_worth} ranks are worth it, by the rows {most_worth(answer.worth)}."
        for row in answer.predictions:
            ranks = row.setup.world_size
            measured_s = answer.measured_s.get(ranks)
            if measured_s is not None and is_contradicted(measured_s, row.step_s):
                yield (
                    f"{in_ms(row.step_s.value)} is predicted for {counted(ranks, 'rank')}, and "
                    f"{in_ms(measured_s)} was measured ({percent(measured_s / row.step_s.value)})."
                )


_CHECKS: tuple[Callable[[AnalyzedRun], Iterator[str]], ...] = (
    _waterfalls_add_up,
    _table_and_waterfall,
    _findings_and_terms,
    _order_and_costs,
    _predictions,
)


def _about(analyzed: AnalyzedRun, trial_id: str) -> list[Finding]:
    return [finding for finding in analyzed.diagnosis.findings if finding.trial_id == trial_id]


def _name(row: ScalingRow) -> str:
    return f"{counted(row.ranks, 'rank')} at batch {row.batch:,}"
