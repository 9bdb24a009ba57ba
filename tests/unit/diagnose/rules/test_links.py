"""Rules about links and late ranks: a slow link, NCCL on sockets, more work or pauses."""

import dataclasses
from collections.abc import Mapping

import pytest

from scalescope.analysis.comm.nccl_log import NcclChoices
from scalescope.analysis.comm.pairs import PairRow
from scalescope.analysis.culprit import Straggler
from scalescope.analysis.scaling.waterfall import COMMUNICATION, RANDOM_SKEW, STRAGGLERS
from scalescope.analysis.training.pauses import PeriodicPauses
from scalescope.analysis.training.uneven_work import UnevenWork
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.rules.links import socket_fallback_rule, unequal_links_rule
from scalescope.diagnose.rules.ranks import random_skew_rule, straggler_rule
from tests.builders.facts import ON_GPUS, abstention, evidence_of, facts_from, finding, make_facts, measured

MB = 1_000_000


def linked(slow: Mapping[tuple[int, int], float], *, ranks: int = 4, exposed_s: float = 0.05) -> Facts:
    """Ranks that wait for half of a step; every pair carries 1 GB/s but for slow ones."""
    every = [(low, high) for low in range(ranks) for high in range(low + 1, ranks)]
    pairs = tuple(
        PairRow(low=low, high=high, size_bytes=MB, time_s=MB / slow.get((low, high), 1e9))
        for low, high in every
    )
    return make_facts({COMMUNICATION: exposed_s}, ranks=ranks, pairs=pairs)


def test_a_pair_that_is_slow_by_itself_costs_what_a_usual_one_would_not() -> None:
    cause = finding(unequal_links_rule(linked({(1, 3): 1e8})))
    evidence = evidence_of(cause)
    assert evidence["slow links"] == "the link between ranks 1 and 3"
    assert (evidence["slowest"], evidence["usual"]) == (pytest.approx(1e8), pytest.approx(1e9))
    assert cause.root and cause.lost == pytest.approx(2.0 * 0.9)
    assert cause.share == pytest.approx(0.5 * 0.9)
    (advice,) = cause.advice
    assert advice.command == "scalescope comm --pairs --world-size 4 --device cpu"


def test_a_link_is_compared_with_its_own_kind_of_path() -> None:
    facts = linked({(1, 3): 1e8})
    pairs = tuple(dataclasses.replace(pair, path="PIX") for pair in facts.pairs)
    claim = finding(unequal_links_rule(dataclasses.replace(facts, pairs=pairs))).claim
    assert "others with the same kind of path (PIX) carry 1,000 MB/s" in claim
    alone = tuple(dataclasses.replace(pair, path=f"{pair.low}-{pair.high}") for pair in facts.pairs)
    assert unequal_links_rule(dataclasses.replace(facts, pairs=alone)) is None


def test_pairs_are_measured_over_the_same_links() -> None:
    facts = make_facts({COMMUNICATION: 0.05}, ranks=4, changes={"link": "1gbit"})
    abstained = abstention(unequal_links_rule(facts))
    assert abstained.command == "scalescope comm --pairs --world-size 4 --device cpu --link 1gbit"


def test_links_that_are_alike_alone_or_hidden_are_no_finding() -> None:
    assert unequal_links_rule(linked({(1, 3): 6e8})) is None
    assert unequal_links_rule(linked({(0, 1): 1e6}, ranks=2)) is None
    assert unequal_links_rule(linked({(1, 3): 1e8}, exposed_s=0.0)) is None
    assert unequal_links_rule(make_facts({COMMUNICATION: 0.0}, ranks=4)) is None


# NCCL on sockets


def choices(*transports: str) -> NcclChoices:
    return NcclChoices(transports=transports, network="Socket", channels=None, algorithms=(), nvls=None)


def over(nccl: NcclChoices | None, **changes: object) -> Facts:
    return make_facts({COMMUNICATION: 0.05}, changes={**ON_GPUS, **changes}, nccl=nccl)


def test_sockets_are_found_in_the_nccl_log() -> None:
    cause = finding(socket_fallback_rule(over(choices("NET/Socket"))))
    assert evidence_of(cause) == {"transport": "NET/Socket", "network": "Socket"}
    assert cause.root
    assert cause.share == pytest.approx(0.5)


def test_other_transports_silence_and_wanted_sockets_are_no_finding() -> None:
    for nccl in (None, choices("P2P/CUMEM"), choices("NET/IB")):
        assert socket_fallback_rule(over(nccl)) is None
    for changes in ({"split_gpu": 2}, {"oversubscribe": True}, {"backend": "gloo"}):
        assert socket_fallback_rule(over(choices("NET/Socket"), **changes)) is None


# late ranks


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
    assert finding(straggler_rule(_late(uneven))).symptom is is_symptom


@pytest.mark.parametrize(("cost_s", "is_symptom"), [(0.015, True), (0.005, False), (None, False)])
def test_random_skew_by_batches_is_a_symptom(cost_s: float | None, is_symptom: bool) -> None:
    uneven = None if cost_s is None else _uneven(None, cost_s)
    facts = make_facts({RANDOM_SKEW: 0.02}, uneven_work=uneven)
    assert finding(random_skew_rule(facts)).symptom is is_symptom


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
    assert finding(straggler_rule(facts)).symptom is late
    assert finding(random_skew_rule(make_facts({RANDOM_SKEW: 0.02}, pauses=pauses))).symptom is skewed


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
