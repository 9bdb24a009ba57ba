"""Rules about cores and GPUs: too many threads, idle or shared or hot devices, full memory."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from scalescope.analysis.culprit import Straggler
from scalescope.analysis.scaling.waterfall import COMMUNICATION, CONTENTION, STRAGGLERS
from scalescope.analysis.telemetry import SlowedGpu, TelemetrySummary
from scalescope.diagnose.diagnosis import diagnose_facts
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.rules.measuring import memory_limit_rule
from scalescope.diagnose.rules.ranks import (
    THROTTLING,
    contention_rule,
    shared_gpu_rule,
    throttling_rule,
)
from scalescope.experiment.explanations import single_rank_baseline
from tests.builders.facts import (
    ON_GPUS,
    abstention,
    evidence_of,
    finding,
    levers,
    make_curve,
    make_facts,
    with_telemetry,
)
from tests.builders.results import make_configuration

GIB = 1 << 30


# contention


def crowded(
    cores: int = 4, *, threads: int = 4, bytes_per_s: float = 1e9, changes: Mapping[str, object] | None = None
) -> Facts:
    """Two ranks that take a tenth of a step from each other, come late by one and wait for two."""
    return make_facts(
        {CONTENTION: 0.01, STRAGGLERS: 0.01, COMMUNICATION: 0.02},
        settings={"threads_per_rank": threads},
        changes=changes,
        cores=cores,
        curve=make_curve(1e-4, bytes_per_s),
        gradient_bytes=20_000_000,
    )


def test_too_many_threads_may_cost_what_waits_for_a_core_as_well() -> None:
    cause = finding(contention_rule(crowded()))
    assert cause.rule == "too many CPU threads"
    assert evidence_of(cause) == {"contention": pytest.approx(0.01), "threads": 8}
    assert cause.lost == pytest.approx(0.8)
    assert cause.share == pytest.approx(0.4)
    assert levers(cause) == ["threads_per_rank=2"]


def test_too_many_threads_are_advised_fewer_and_not_blamed_for_a_slow_network() -> None:
    cause = finding(contention_rule(crowded(bytes_per_s=2e7)))
    assert cause.rule == "too many CPU threads"
    assert cause.share == pytest.approx(0.1)
    assert levers(finding(contention_rule(crowded(cores=1)))) == ["threads_per_rank=1"]
    assert finding(contention_rule(crowded(cores=1, threads=1))).advice == ()


@pytest.mark.parametrize(
    "facts",
    [
        crowded(cores=8),
        crowded(changes=ON_GPUS),
        crowded(changes={"stand_in": True}),
        dataclasses.replace(crowded(), cores=None),
    ],
)
def test_threads_that_have_cores_enough_slow_each_other_by_something_else(facts: Facts) -> None:
    cause = finding(contention_rule(facts))
    assert cause.rule == "ranks slow each other down"
    assert cause.share == pytest.approx(0.1)


def test_contention_on_request_of_no_cost_or_unknown_is_no_finding() -> None:
    assert contention_rule(crowded(changes={**ON_GPUS, "oversubscribe": True})) is None
    assert contention_rule(make_facts({CONTENTION: 0.001}, cores=1)) is None
    assert contention_rule(make_facts({CONTENTION: None}, cores=1)) is None


# the GPU by itself


def on_gpu(telemetry: TelemetrySummary | None = None, *, alone_s: float = 0.01, **changes: Any) -> Facts:
    """Two GPUs, and what was seen of them; one rank alone takes `alone_s` and shows the same."""
    facts = make_facts(changes={**ON_GPUS, **changes}, telemetry=telemetry, gpu_memory_bytes=GIB)
    alone = make_configuration(single_rank_baseline(facts.trial), alone_s)
    return dataclasses.replace(facts, one_rank=with_telemetry(alone, telemetry or TelemetrySummary()))


def test_memory_is_nearly_full_from_92_percent() -> None:
    cause = finding(memory_limit_rule(on_gpu(TelemetrySummary(gpu_memory_bytes=0.95 * GIB))))
    assert evidence_of(cause) == {"used": 0.95 * GIB, "total": GIB}
    assert "95 %" in cause.claim
    assert cause.advice[0].command.startswith("scalescope memory /run/experiment.yaml --world-size ")
    assert memory_limit_rule(on_gpu(TelemetrySummary(gpu_memory_bytes=0.9 * GIB))) is None
    full = on_gpu(TelemetrySummary(gpu_memory_bytes=GIB))
    assert memory_limit_rule(on_gpu()) is None
    assert memory_limit_rule(dataclasses.replace(full, gpu_memory_bytes=None)) is None


def slowed(uuid: str = "a", clock: float | None = 0.6, **reasons: float) -> TelemetrySummary:
    """A GPU that was slowed down, in these shares of its readings."""
    names = {"heat": "thermal (hardware)", "cap": "power cap"}
    shares = {names[name]: share for name, share in reasons.items()}
    gpu = SlowedGpu(host="n2", uuid=uuid, reasons=shares, clock_share=clock)
    return TelemetrySummary(slowdowns=tuple(shares), slowed_gpus=(gpu,), power_w=300.0)


def late(telemetry: TelemetrySummary, *gpus: str | None) -> Facts:
    """Two ranks on GPUs; the second one is 20 ms of 100 late."""
    return make_facts(
        {STRAGGLERS: 0.02},
        telemetry=telemetry,
        changes=ON_GPUS,
        straggler=Straggler(rank=1, time_s=0.02, persistent=True),
        gpu_uuids=gpus,
        hosts=("n1", "n2"),
    )


def test_a_hot_gpu_is_named_with_its_rank_the_reason_and_its_clock() -> None:
    facts = dataclasses.replace(on_gpu(slowed("b", heat=0.8)), gpu_uuids=("a", "GPU-b"))
    cause = finding(throttling_rule(facts))
    assert evidence_of(cause) == {"GPU b of n2": "thermal (hardware) 80 %"}
    assert "The GPU of rank 1 on n2 was slowed down to 60 % of its clock" in cause.claim
    assert (cause.lost, cause.terms) == (0.0, ())  # no rank is late: it costs nothing that was measured


def test_a_hot_gpu_of_the_late_rank_takes_the_stragglers_loss() -> None:
    facts = late(slowed("b", heat=0.8), "a", "b")
    cause = finding(throttling_rule(facts))
    assert (cause.terms, cause.root) == ((STRAGGLERS,), True)
    assert cause.lost == pytest.approx(facts.culprit_lost) and cause.lost > 0.0
    assert "rank 1 is 20.0 ms per step late" in cause.claim
    first, *_ = diagnose_facts((facts,)).findings
    assert first.rule == THROTTLING  # before "straggling rank": it is its cause


@pytest.mark.parametrize("gpus", [("b", "a"), ("a", None), ()])
def test_a_hot_gpu_of_another_rank_does_not_take_that_loss(gpus: tuple[str | None, ...]) -> None:
    cause = finding(throttling_rule(late(slowed("b", heat=0.8), *gpus)))
    assert (cause.lost, cause.terms) == (0.0, ())


def test_a_power_cap_of_one_gpu_alone_is_a_finding() -> None:
    assert throttling_rule(on_gpu(slowed("a", cap=1.0))) is None
    capped = slowed("a", cap=1.0)
    both = dataclasses.replace(
        capped, slowed_gpus=(*capped.slowed_gpus, dataclasses.replace(capped.slowed_gpus[0], uuid="b"))
    )
    assert throttling_rule(late(both, "a", "b")) is None  # all are capped alike
    facts = late(slowed("b", cap=1.0), "a", "b")
    assert finding(throttling_rule(facts)).lost == pytest.approx(facts.culprit_lost)
    facts = make_facts({COMMUNICATION: 0.04}, telemetry=slowed("a", cap=1.0), changes=ON_GPUS)
    free = make_configuration(single_rank_baseline(facts.trial), 0.06)
    alone = dataclasses.replace(facts, one_rank=with_telemetry(free, TelemetrySummary(power_w=200.0)))
    assert finding(throttling_rule(alone)).lost == 0.0
    assert throttling_rule(facts) is None  # not known of one rank


def test_an_unknown_clock_is_not_invented_and_a_gpu_that_others_heat_not_judged() -> None:
    cause = finding(throttling_rule(on_gpu(slowed("a", None, heat=0.5))))
    assert "clock" not in cause.claim
    assert throttling_rule(on_gpu()) is None
    facts = dataclasses.replace(on_gpu(slowed("a", heat=0.5)), has_other_load=True)
    assert "other load" in abstention(throttling_rule(facts)).missing


def test_ranks_that_share_a_gpu_lose_what_they_do_not_deliver() -> None:
    facts = make_facts({CONTENTION: 0.04}, changes={**ON_GPUS, "oversubscribe": True})
    cause = finding(shared_gpu_rule(facts))
    assert cause.root
    assert cause.share == pytest.approx(0.4)
    assert shared_gpu_rule(make_facts({CONTENTION: 0.04}, changes=ON_GPUS)) is None
    facts = make_facts({CONTENTION: -0.02}, changes={**ON_GPUS, "oversubscribe": True})
    assert finding(shared_gpu_rule(facts)).lost == 0.0
