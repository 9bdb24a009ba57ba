"""The diagnosis: what is doubted, what comes first, and what every rule makes of nothing."""

import dataclasses

import pytest

from scalescope.analysis.comm.pairs import PairRow
from scalescope.analysis.scaling.waterfall import COMMUNICATION, CONTENTION, RANDOM_SKEW
from scalescope.analysis.statistics import Estimate
from scalescope.diagnose.diagnosis import diagnose_facts
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Finding
from scalescope.report.findings import findings_json, findings_section
from tests.builders.facts import ON_GPUS, evidence_of, make_curve, make_facts


def exposed(low_s: float, *, ranks: int = 2) -> Facts:
    """A fifth of a step is exposed, at least `low_s` of it."""
    return make_facts(
        {COMMUNICATION: Estimate(0.02, low_s, 0.05)},
        ranks=ranks,
        curve=make_curve(),
        gradient_bytes=20_000_000,
        bucket_bytes=(20_000_000,),
    )


def findings(*cases: Facts) -> dict[str, Finding]:
    return {finding.rule: finding for finding in diagnose_facts(cases).findings}


def test_a_loss_that_may_be_zero_is_reported_as_uncertain() -> None:
    finding = findings(exposed(-0.01))["communication-bound by bandwidth"]
    assert finding.lost == pytest.approx(0.4)
    assert not finding.certain
    assert findings(exposed(0.01))["communication-bound by bandwidth"].certain
    facts = make_facts({CONTENTION: 0.02, RANDOM_SKEW: Estimate(0.02, -0.01, 0.05)})
    by_rule = findings(facts)
    assert by_rule["ranks slow each other down"].certain
    assert not by_rule["random skew between ranks"].certain


@pytest.mark.parametrize(("low_s", "certain"), [(-0.01, False), (0.01, True)])
def test_the_terminal_and_the_summary_mark_what_is_not_certain(low_s: float, certain: bool) -> None:
    diagnosis = diagnose_facts((exposed(low_s),))
    by_rule = {finding["rule"]: finding for finding in findings_json(diagnosis)}
    assert by_rule["communication-bound by bandwidth"]["certain"] is certain
    (section,) = findings_section(diagnosis)
    assert section.findings
    assert {"Not certain" in finding.text for finding in section.findings} == {not certain}


def test_a_doubt_about_waiting_is_one_about_the_link_that_is_blamed_for_it() -> None:
    rates = {(0, 1): 1e9, (0, 2): 1e9, (0, 3): 1e9, (1, 2): 1e9, (1, 3): 1e8, (2, 3): 1e9}
    pairs = tuple(
        PairRow(low=low, high=high, size_bytes=1000, time_s=1000 / rate)
        for (low, high), rate in rates.items()
    )
    facts = dataclasses.replace(exposed(-0.01, ranks=4), pairs=pairs)
    assert not findings(facts)["unequal links"].certain


def test_a_finding_names_its_configuration_where_there_are_several() -> None:
    (name, *_) = findings(exposed(0.01))
    assert findings(exposed(0.01))[name].about == ""
    assert findings(exposed(0.01), exposed(0.01, ranks=4))[name].about.endswith("ranks, batch 10")


def test_a_rule_that_found_something_elsewhere_does_not_abstain() -> None:
    unmeasured = make_facts({COMMUNICATION: 0.02}, ranks=4, curve=make_curve())
    abstentions = diagnose_facts((unmeasured,)).abstentions
    assert "communication-bound by bandwidth" in {abstention.rule for abstention in abstentions}
    both = diagnose_facts((unmeasured, exposed(0.01))).abstentions
    assert "communication-bound by bandwidth" not in {abstention.rule for abstention in both}


@pytest.mark.parametrize("changes", [{}, ON_GPUS], ids=["cpu", "cuda"])
def test_no_rule_fails_where_nothing_is_known(changes: dict[str, object]) -> None:
    diagnosis = diagnose_facts((make_facts(changes=changes),))
    assert not any("the rule failed" in abstention.missing for abstention in diagnosis.abstentions)
    assert all(finding.share == 0.0 for finding in diagnosis.findings)


def test_a_finding_from_a_single_launch_is_marked() -> None:
    facts = make_facts({RANDOM_SKEW: Estimate(0.02)})
    finding = findings(facts)["random skew between ranks"]
    assert finding.single and not finding.certain
    (section,) = findings_section(diagnose_facts((facts,)))
    assert "single launch" in section.findings[0].text
    assert findings(make_facts({RANDOM_SKEW: Estimate(0.02, 0.01, 0.03)}))[finding.rule].certain


@pytest.mark.parametrize(("share", "is_found"), [(0.10, False), (0.20, True)])
def test_a_single_launch_needs_a_large_loss(share: float, is_found: bool) -> None:
    facts = make_facts({RANDOM_SKEW: Estimate(share * 0.1)}, step_s=0.1)
    assert ("random skew between ranks" in findings(facts)) == is_found


@pytest.mark.parametrize(("step_s", "named"), [(0.1, True), (0.4, False)])
def test_the_largest_known_term_is_not_most_of_what_is_lost_where_others_are_unknown(
    step_s: float, named: bool
) -> None:
    facts = make_facts({"wrapper": 0.08, COMMUNICATION: None}, step_s=step_s)
    row = dataclasses.replace(facts.row, speedup=Estimate(0.4))
    negative = findings(dataclasses.replace(facts, row=row))["negative scaling"]
    assert evidence_of(negative).get("largest loss") == ("wrapper" if named else None)
