"""Late ranks whose batches hold more, or that pause: that is the cause, and the late rank its symptom."""

import dataclasses

import pytest

from scalescope.analysis.culprit import Straggler
from scalescope.analysis.scaling.waterfall import RANDOM_SKEW, STRAGGLERS
from scalescope.analysis.training.pauses import PeriodicPauses
from scalescope.analysis.training.uneven_work import UnevenWork
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.rules import random_skew, straggler
from tests.builders.facts import facts_from, finding, make_facts, measured


def _uneven(heaviest: int | None, cost_s: float) -> UnevenWork:
    return UnevenWork(
        unit="tokens",
        by_rank=(100.0, 200.0),
        heaviest=heaviest,
        excess=0.25,
        cost_s=cost_s,
        source="step times",
    )


def _late(uneven: UnevenWork | None) -> Facts:
    """Rank 1 of two is 20 ms of 100 late."""
    culprit = Straggler(rank=1, time_s=0.02, persistent=True)
    return make_facts({STRAGGLERS: 0.02}, straggler=culprit, uneven_work=uneven)


@pytest.mark.parametrize(
    ("uneven", "is_symptom"),
    [
        (_uneven(1, 0.01), True),
        (_uneven(1, 0.002), False),  # it explains too little
        (_uneven(0, 0.01), False),  # another rank has more
        (_uneven(None, 0.01), False),
        (None, False),
    ],
)
def test_a_late_rank_with_more_work_is_a_symptom(uneven: UnevenWork | None, is_symptom: bool) -> None:
    assert finding(straggler.rule(_late(uneven))).symptom is is_symptom


@pytest.mark.parametrize(("cost_s", "is_symptom"), [(0.015, True), (0.005, False), (None, False)])
def test_random_skew_by_batches_is_a_symptom(cost_s: float | None, is_symptom: bool) -> None:
    uneven = None if cost_s is None else _uneven(None, cost_s)
    facts = make_facts({RANDOM_SKEW: 0.02}, uneven_work=uneven)
    assert finding(random_skew.rule(facts)).symptom is is_symptom


def _pauses(*origins: int, cost_s: float = 0.015) -> PeriodicPauses:
    return PeriodicPauses(
        period=10, length_s=10 * cost_s, cost_s=cost_s, other_cost_s=0.0, launches=1, origins=origins
    )


@pytest.mark.parametrize(
    ("pauses", "late", "skewed"),
    [
        (_pauses(1), True, True),
        (_pauses(0), False, True),
        (_pauses(0, 1), False, False),
        (_pauses(1, cost_s=0.005), False, False),
    ],
)
def test_a_late_rank_or_skew_by_one_that_pauses_is_a_symptom(
    pauses: PeriodicPauses, late: bool, skewed: bool
) -> None:
    facts = dataclasses.replace(_late(None), pauses=pauses)
    assert finding(straggler.rule(facts)).symptom is late
    assert finding(random_skew.rule(make_facts({RANDOM_SKEW: 0.02}, pauses=pauses))).symptom is skewed


def test_facts_of_a_run_know_uneven_work() -> None:
    trial = make_facts().trial
    results = measured(trial, 0.1, 0.1)
    for result in results:
        for record, elements in zip(result.ranks, (100.0, 300.0), strict=True):
            record.counters["work/elements"] = elements
            record.counters.update({"host/forward_s": elements / 1e4, "host/backward_s": elements / 5e3})
    baseline = measured(trial.replace(world_size=1), 0.05, 0.05)
    (facts,) = facts_from(results, baseline)
    assert facts.uneven_work is not None
    assert (facts.uneven_work.heaviest, facts.uneven_work.source) == (1, "host time")
    assert facts.uneven_work.by_rank == (100.0, 300.0)
