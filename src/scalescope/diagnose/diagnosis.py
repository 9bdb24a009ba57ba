"""Diagnosis: runs every rule over the facts of a run and puts what they find in order."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterator

from scalescope.diagnose import rules
from scalescope.diagnose.facts import Facts, facts_of
from scalescope.diagnose.finding import Abstention, Diagnosis, Finding
from scalescope.results.run import Run

Rule = Callable[[Facts], Finding | Abstention | None]


def diagnose(run: Run) -> Diagnosis:
    """What a run says about why it does not scale; the largest world size speaks first."""
    return diagnose_facts(facts_of(run))


def diagnose_facts(cases: tuple[Facts, ...]) -> Diagnosis:
    """The same from facts alone."""
    findings: list[Finding] = []
    abstentions: dict[str, Abstention] = {}
    for facts in cases:
        for name, rule in _rules():
            try:
                found = rule(facts)
            except Exception as error:  # a wrong rule must not cost a finished run its results
                found = Abstention(rule=name, missing=f"what it means (the rule failed: {error!r})")
            if isinstance(found, Finding):
                findings.append(
                    dataclasses.replace(
                        found,
                        about=facts.about if len(cases) > 1 else "",
                        certain=found.certain and (not found.term or facts.is_sure(found.term)),
                    )
                )
            elif isinstance(found, Abstention):
                abstentions.setdefault(found.rule, found)
    told = {one.rule for one in findings}
    return Diagnosis(
        findings=tuple(_in_order(_once(findings))),
        abstentions=tuple(one for name, one in abstentions.items() if name not in told),
    )


def _rules() -> Iterator[tuple[str, Rule]]:
    for module in pkgutil.iter_modules(rules.__path__):
        yield module.name, importlib.import_module(f"{rules.__name__}.{module.name}").rule


def _once(findings: list[Finding]) -> list[Finding]:
    """Each rule where it costs most."""
    worst: dict[str, Finding] = {}
    for one in findings:
        if one.rule not in worst or one.share > worst[one.rule].share:
            worst[one.rule] = one
    return list(worst.values())


def _in_order(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda one: (one.symptom, -one.share, not one.root, one.rule))
