"""Findings in words: the claim, its evidence, and what to do first."""

import dataclasses
from typing import Any

from scalescope.diagnose.finding import Abstention, Advice, Diagnosis, Evidence, Finding
from scalescope.report.numbers import data_size, in_ms, milliseconds, percent, signed_percent, significant
from scalescope.report.section import ListedFinding, Section, ShownCommand
from scalescope.results.run import Run
from scalescope.results.run_commands import repeating_command
from scalescope.results.run_record import resume_argv

_NOT_KNOWN = "Speed is lost, but its cause was not measured; scalescope scale measures it."
_NOTHING_LOST = "No loss of speed was found."
_SINGLE_LAUNCH = " Based on a single launch; use more --repeats to confirm."
_UNCERTAIN = " Not certain: launches differ too much; use more --repeats to confirm."
_SHOWN = 3  # on the first screen; explain and -v show all


def findings_section(
    diagnosis: Diagnosis, *, every: bool = False, loses: bool = False
) -> tuple[Section, ...]:
    """The most expensive findings with their advice; the rest, and what was not checked, on request."""
    costly = [finding for finding in diagnosis.findings if every or finding.share > 0.0]
    shown = costly if every else costly[:_SHOWN]
    listed = tuple(_listed(finding, every=every) for finding in shown)
    nothing = _cause_unknown(diagnosis) if loses else _NOTHING_LOST
    lines: tuple[str, ...] = (nothing,) if every and not shown else ()
    details = [
        f"{finding.rule}: {finding.claim}{_cost(finding)}"
        for finding in diagnosis.findings
        if finding not in shown
    ]
    broken = [abstention for abstention in diagnosis.abstentions if abstention.error]
    lines += tuple(f"The rule {rule.rule} failed: {rule.error}." for rule in broken)
    details += [_not_checked(rule) for rule in diagnosis.abstentions if rule not in broken]
    if not (listed or lines or details):
        return ()
    title = "Findings and advice" if shown else None
    return (Section(title=title, lines=lines, findings=listed, details=tuple(details)),)


def _cause_unknown(diagnosis: Diagnosis) -> str:
    missing = [abstention.missing for abstention in diagnosis.abstentions if not abstention.error]
    return f"Speed is lost, but its cause is unknown: {missing[0]} is not known." if missing else _NOT_KNOWN


def first_finding(diagnosis: Diagnosis) -> tuple[Section, ...]:
    """The finding that costs most, with what to do; empty where none costs anything."""
    costly = [finding for finding in diagnosis.findings if finding.share > 0.0][:1]
    return tuple(Section(title="First finding", findings=(_listed(each, every=False),)) for each in costly)


def _listed(finding: Finding, *, every: bool) -> ListedFinding:
    where = f" [{finding.about}]" if finding.about else ""
    doubt = "" if finding.certain else _UNCERTAIN
    doubt = _SINGLE_LAUNCH if finding.single else doubt
    shown = finding.advice if every else finding.advice[:1]
    name = f"{finding.rule}{where}:"
    return ListedFinding(
        name=name,
        text=f"{name} {finding.claim}{_cost(finding)}{doubt}",
        commands=tuple(map(command_of, shown)),
    )


def command_of(advice: Advice) -> ShownCommand:
    """Advice as a reader gets it: a command of ours, or the line to change."""
    gain = advice.predicted_gain
    label = advice.label if gain is None else f"{advice.label} (predicted: {signed_percent(gain)} throughput)"
    return ShownCommand(label=label, argv=advice.argv, changes_job=advice.changes_job)


def continuing(run: Run) -> ShownCommand:
    """What to do where nothing was finished: go on, with twice the budget where one ended it, or start anew
    where the launches failed: what they are made of has to change first."""
    is_stopped = run.record.end is None or run.record.end.why in ("budget", "interrupted", "ranks_lost")
    if not is_stopped and (again := repeating_command(run.path, run.record)):
        return ShownCommand(label="once the cause is fixed, measure again", argv=again)
    budget = None if run.record.end is None else run.record.end.budget_s
    argv = resume_argv(run.path.resolve(), None if budget is None else 2.0 * budget)
    return ShownCommand(label="continue" if budget is None else "continue with more time", argv=argv)


def _cost(finding: Finding) -> str:
    """` It costs 9.80 ms of 14.0 ms per step (70 %), an estimate.`; empty where it is not known in time."""
    if finding.cost_s is None:
        return " This is part of the loss above." if finding.is_counted else ""
    step = f" of {in_ms(finding.cost_s / finding.share)}" if 0.0 < finding.share < 1.0 else ""
    share = f" ({percent(finding.share)})" if finding.share > 0.0 else ""
    estimate = ", an estimate" if finding.estimated else ""
    if finding.counted_s and not finding.cost_s:
        return " Its cost is counted above."
    counted = f"; {in_ms(finding.counted_s)} more are counted above" if finding.counted_s else ""
    return f" It costs {in_ms(finding.cost_s)}{step} per step{share}{estimate}{counted}."


def _not_checked(abstention: Abstention) -> str:
    hint = f" To measure it: {abstention.command}" if abstention.command else ""
    return f"Not checked: {abstention.rule} ({abstention.missing} is not known).{hint}"


def evidence_section(diagnosis: Diagnosis) -> tuple[Section, ...]:
    """The evidence of all findings; empty where none has any."""
    lines = tuple(
        line
        for finding in diagnosis.findings
        if finding.evidence
        for line in (f"{finding.rule}:", *evidence_lines(finding))
    )
    return (Section(title="Evidence", lines=lines),) if lines else ()


def evidence_lines(finding: Finding) -> list[str]:
    """The evidence of a finding, one line per number."""
    return [
        f"   {item.name}: {_value(item)}{f' ({item.source})' if item.source else ''}"
        for item in finding.evidence
    ]


def _value(item: Evidence) -> str:
    if isinstance(item.value, str):
        return item.value
    if item.unit == "s":
        return f"{milliseconds(item.value)} ms"
    if item.unit == "bytes":
        return data_size(item.value)
    if item.unit == "bytes/s":
        return f"{significant(item.value / 1e6)} MB/s"
    number = f"{item.value:,.0f}" if float(item.value).is_integer() else significant(item.value)
    return f"{number} {item.unit}".strip()


def findings_json(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """The findings as results.json holds them."""
    return [
        {
            "rule": finding.rule,
            "severity": finding.severity,
            "claim": finding.claim,
            "about": finding.about,
            "lost": finding.lost,
            "cost_s": finding.cost_s,
            "estimated": finding.estimated,
            "certain": finding.certain,
            "single_launch": finding.single,
            "evidence": {
                item.name: {"value": item.value, "unit": item.unit, "source": item.source}
                for item in finding.evidence
            },
            "advice": [
                {**dataclasses.asdict(advice), "command": advice.command} for advice in finding.advice
            ],
        }
        for finding in diagnosis.findings
    ]
