"""Rules that look at settings and doubts alone."""

import dataclasses

from scalescope.diagnose.rules import unstable, unused_parameters
from tests.builders.facts import finding, levers, make_facts
from tests.builders.results import make_configuration

LOOKING = {"find_unused_parameters": True, "static_graph": False}


def test_looking_for_unused_parameters_is_advised_against() -> None:
    cause = finding(unused_parameters.rule(make_facts(changes=LOOKING)))
    assert levers(cause) == ["find_unused_parameters=no"]


def test_a_static_graph_looks_once() -> None:
    assert unused_parameters.rule(make_facts(changes={**LOOKING, "static_graph": True})) is None
    assert unused_parameters.rule(make_facts()) is None


def test_launches_that_differ_are_a_finding() -> None:
    facts = make_facts()
    differing = make_configuration(facts.trial, 0.1, 0.12, 0.14)
    cause = finding(
        unstable.rule(dataclasses.replace(facts, row=dataclasses.replace(facts.row, configuration=differing)))
    )
    assert "launches differ by " in cause.claim
    assert [evidence.name for evidence in cause.evidence] == ["doubt 1"]
    assert cause.share == 0.0


def test_a_calm_machine_is_not_doubted() -> None:
    assert unstable.rule(make_facts()) is None
