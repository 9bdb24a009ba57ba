"""Diagnosis: runs every rule over the facts of a run and puts what they find in order."""

import dataclasses
import importlib
import itertools
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from scalescope.analysis.prediction.answer import gains_by_trial
from scalescope.diagnose import rules, run_rules, step_rules
from scalescope.diagnose.facts import Facts, facts_of
from scalescope.diagnose.finding import Abstention, Advice, Diagnosis, Finding
from scalescope.diagnose.step_facts import StepFacts, step_facts_of
from scalescope.results.ledger import LedgerEntry
from scalescope.results.run import Run

Outcome = Finding | Abstention
_RULE = "_rule"
_LEAST_LEFT = 0.01  # of the speed: a finding with less left costs nothing
NO_GAINS: Mapping[str, Mapping[str, float]] = {}


def diagnose(
    run: Run, steps: tuple[StepFacts, ...] | None = None, ledger: Iterable[LedgerEntry] = ()
) -> Diagnosis:
    """Why a run is slow and why it does not scale, the most expensive cause first.

    `steps` are its facts of each step, where somebody has them already; `ledger` has earlier predictions.
    """
    cases = facts_of(run)
    of_run = [outcome for rule in _rules(run_rules) for outcome in _applied(rule, run, cases)]
    steps = step_facts_of(run) if steps is None else steps
    return diagnose_facts(cases, of_run, steps, gains_by_trial(run, ledger))


def diagnose_facts(
    cases: tuple[Facts, ...],
    of_run: Sequence[Outcome] = (),
    steps: tuple[StepFacts, ...] = (),
    gains: Mapping[str, Mapping[str, float]] = NO_GAINS,
) -> Diagnosis:
    """The same from facts alone, with the outcomes of rules about the whole run.

    `gains` is what moving a setting is predicted to gain, by trial and by name.
    """
    outcomes = [*of_run, *_outcomes(cases, gains), *_step_outcomes(steps)]
    findings = [outcome for outcome in outcomes if isinstance(outcome, Finding)]
    abstentions: dict[str, Abstention] = {}
    for outcome in outcomes:
        if isinstance(outcome, Abstention):
            abstentions.setdefault(outcome.rule, outcome)
    rules_with_finding = {finding.rule for finding in findings}
    return Diagnosis(
        findings=tuple(_in_order(shared(_in_order(_once(findings)), cases, steps))),
        abstentions=tuple(
            abstention for name, abstention in abstentions.items() if name not in rules_with_finding
        ),
    )


def _outcomes(cases: tuple[Facts, ...], gains: Mapping[str, Mapping[str, float]]) -> Iterator[Outcome]:
    """Of all rules about ranks together, at every configuration of several."""
    for facts, rule in itertools.product(cases, _rules(rules)):
        for outcome in _applied(rule, facts):
            if isinstance(outcome, Finding):
                outcome = dataclasses.replace(
                    outcome,
                    about=facts.about if len(cases) > 1 else "",
                    trial_id=facts.trial.trial_id,
                    certain=outcome.certain and all(map(facts.is_sure, outcome.terms[:1])),
                    single=any(map(facts.is_single, outcome.terms[:1])),
                    advice=_with_gains(outcome.advice, gains.get(facts.trial.trial_id, {})),
                )
            yield outcome


def _with_gains(advice: Iterable[Advice], gains: Mapping[str, float]) -> tuple[Advice, ...]:
    return tuple(dataclasses.replace(item, predicted_gain=gains.get(item.setting or "")) for item in advice)


def _step_outcomes(steps: tuple[StepFacts, ...]) -> Iterator[Outcome]:
    """Of all rules about a step, at every configuration."""
    for facts, rule in itertools.product(steps, _rules(step_rules)):
        for outcome in _applied(rule, facts):
            if isinstance(outcome, Finding):
                about = facts.about if len(steps) > 1 else ""
                outcome = dataclasses.replace(outcome, about=about, trial_id=facts.trial.trial_id)
            yield outcome


def _rules(package: ModuleType) -> list[Callable[..., object]]:
    """The functions of a package's modules whose names end in `_rule`, in the order of their names."""
    modules = (
        importlib.import_module(f"{package.__name__}.{m.name}")
        for m in pkgutil.iter_modules(package.__path__)
    )
    found = {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if name.endswith(_RULE) and callable(value)
    }
    return [found[name] for name in sorted(found)]


def _applied(rule: Callable[..., Any], *arguments: object) -> tuple[Outcome, ...]:
    """What a rule returns: one outcome, several or none. A failing rule must not cost a finished run its
    results."""
    try:
        outcome: Outcome | tuple[Outcome, ...] | None = rule(*arguments)
    except Exception as error:
        name = rule.__name__.removesuffix(_RULE)
        return (Abstention(rule=name, missing="the result", error=repr(error)),)
    if isinstance(outcome, tuple):
        return outcome
    return () if outcome is None else (outcome,)


def _once(findings: list[Finding]) -> list[Finding]:
    """Each rule where it costs most."""
    worst: dict[str, Finding] = {}
    for finding in findings:
        if finding.rule not in worst or finding.share > worst[finding.rule].share:
            worst[finding.rule] = finding
    return list(worst.values())


def shared(
    findings: Sequence[Finding], cases: Sequence[Facts], steps: Sequence[StepFacts]
) -> Iterator[Finding]:
    """Findings that explain the same terms share them. Of a step, each costs what those before it have left;
    between ranks, several causes of one loss are each worth a try, and only the first counts it."""
    left: dict[tuple[str, str, str], float] = {}
    for facts in cases:
        for term in () if facts.waterfall is None else facts.waterfall.terms:
            if term.lost is not None:
                left["ranks", facts.trial.trial_id, term.name] = max(0.0, term.lost.value)
    for step in steps:
        for part in () if step.waterfall is None else step.waterfall.terms:
            left["step", step.trial.trial_id, part.name] = part.time_s.value
    for finding in findings:
        kind, cost = ("ranks", finding.lost) if finding.cost_s is None else ("step", finding.cost_s)
        keys = [key for name in finding.terms if (key := (kind, finding.trial_id, name)) in left]
        granted = _taken(left, keys, cost) if keys and cost > 0.0 else cost
        if granted >= cost:
            yield finding
        elif finding.cost_s is None:
            yield dataclasses.replace(finding, is_counted=True)
        else:
            yield _costing(finding, granted / cost)


def _taken(
    left: dict[tuple[str, str, str], float], keys: Iterable[tuple[str, str, str]], cost: float
) -> float:
    """What of a cost the terms still have, which they have no more then."""
    rest = cost
    for key in keys:
        part = min(rest, left[key])
        left[key] -= part
        rest -= part
    return cost - rest


def _costing(finding: Finding, share: float) -> Finding:
    """A finding of whose cost a share is left; too little to count is nothing."""
    if share * finding.share < _LEAST_LEFT:
        share = 0.0
    cost_s = finding.cost_s or 0.0
    return dataclasses.replace(
        finding,
        lost=share * finding.lost,
        share=share * finding.share,
        cost_s=share * cost_s,
        counted_s=(1.0 - share) * cost_s,
    )


def _in_order(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(
        findings,
        key=lambda finding: (
            not finding.leads,
            finding.symptom,
            -finding.share,
            not finding.root,
            finding.rule,
        ),
    )
