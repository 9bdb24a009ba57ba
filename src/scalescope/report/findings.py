"""Findings in words: the claim, what it stands on, and what to do first."""

import dataclasses
from typing import Any

from scalescope.diagnose.finding import Advice, Diagnosis, Evidence, Finding
from scalescope.report.numbers import data_size, milliseconds, significant
from scalescope.report.section import Section

_NOT_KNOWN = "Nothing that was measured says where the speed goes; scalescope scale measures that as well."
_SHOWN = 3  # on the first screen; explain and -v show all


def findings_section(
    diagnosis: Diagnosis, *, every: bool = False, loses: bool = False
) -> tuple[Section, ...]:
    """The most expensive findings with their advice; the rest, and what could not be told, on request."""
    worth = [finding for finding in diagnosis.findings if every or finding.share > 0.0]
    shown = worth if every else worth[:_SHOWN]
    lines = [
        line for number, finding in enumerate(shown, start=1) for line in _lines(number, finding, every=every)
    ]
    if not shown:
        lines = [_NOT_KNOWN if loses else "Nothing was found that costs speed."] if every else []
    details = [f"{finding.rule}: {finding.claim}" for finding in diagnosis.findings if finding not in shown]
    for silent in diagnosis.abstentions:
        hint = f"; {silent.command}" if silent.command else ""
        details.append(f"Cannot tell about {silent.rule}: {silent.missing} is not known{hint}.")
    title = "Why, and what to do" if shown else None
    return (Section(title=title, lines=tuple(lines), details=tuple(details)),) if lines or details else ()


def _lines(number: int, finding: Finding, *, every: bool) -> list[str]:
    where = f" [{finding.about}]" if finding.about else ""
    doubt = " From one launch: more would tell." if finding.single else ""
    doubt = doubt if finding.certain else " Not certain: launches differ too much; more --repeats would tell."
    tries = finding.advice if every else finding.advice[:1]
    return [
        f"{number}. {finding.rule}{where}: {finding.claim}{doubt}",
        *(f"   try: {advice.label}{_another_job(advice)}: {advice.command}" for advice in tries),
    ]


def _another_job(advice: Advice) -> str:
    return " (another job)" if advice.changes_job else ""


def evidence_lines(finding: Finding) -> list[str]:
    """What a finding stands on, number by number."""
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
    return f"{significant(item.value)} {item.unit}".strip()


def findings_json(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """The findings as results.json holds them."""
    return [
        {
            "rule": finding.rule,
            "severity": finding.severity,
            "claim": finding.claim,
            "about": finding.about,
            "lost": finding.lost,
            "certain": finding.certain,
            "single_launch": finding.single,
            "evidence": {
                item.name: {"value": item.value, "unit": item.unit, "source": item.source}
                for item in finding.evidence
            },
            "advice": [dataclasses.asdict(advice) for advice in finding.advice],
        }
        for finding in diagnosis.findings
    ]
