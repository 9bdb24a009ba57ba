"""Rules about the host of a GPU: it waits for the GPU, or is too slow for it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.recording import ReplayedStep, StepRecording, SyncSite
from scalescope.analysis.telemetry import TelemetrySummary
from scalescope.diagnose.diagnosis import diagnose_facts
from scalescope.diagnose.step_facts import StepFacts
from scalescope.diagnose.step_rules.host import host_bound_rule, host_synchronization_rule
from scalescope.results.traces import step_parts
from tests.builders.activities import make_replay
from tests.builders.facts import evidence_of, finding, levers, with_telemetry
from tests.builders.results import make_configuration, make_trial

STEP_S = 0.010
LINE = SyncSite(file="model.py", line=31, function="forward", code="x.item()", operation="", per_step=48.0)
TRACED = SyncSite(
    file="", line=0, function="", code="", operation="aten::nonzero", per_step=2.0, from_trace=True
)
WAITING = {step_parts.FORWARD: 0.002, step_parts.IDLE_SYNC: 0.012, step_parts.IDLE_HOST: 0.004}


def replayed(step_s: float = STEP_S, **times_s: float) -> ReplayedStep:
    return make_replay(step_s, **times_s)


def recording(parts: Mapping[str, float] = WAITING, **known: Any) -> StepRecording:
    whole = dict.fromkeys(step_parts.PARTS, 0.0) | dict(parts)
    basic = {"kernels": 500.0, "kernel_median_s": 4e-6, "plain_step_s": STEP_S}
    return StepRecording(
        **{"rank": 0, "parts": whole, "recorded_step_s": sum(whole.values()), **basic, **known}
    )


def facts(
    recorded: StepRecording | None = None,
    *,
    ranks: int = 1,
    step_s: float = STEP_S,
    telemetry: TelemetrySummary | None = None,
    **changes: Any,
) -> StepFacts:
    """A job on GPUs."""
    trial = make_trial(world_size=ranks, strategy="ddp" if ranks > 1 else "single")
    trial = trial.replace(**{"device": "cuda", "compile": "none", **changes})
    configuration = with_telemetry(make_configuration(trial, step_s), telemetry or TelemetrySummary())
    return StepFacts(
        path=Path("/run"), varied=(), strategies=(), configuration=configuration, recording=recorded
    )


# host synchronization


def waiting(*sites: SyncSite, **known: Any) -> StepFacts:
    """8 ms of a step of 10 are idle, 6 of them after waits; a replay without waits takes 3."""
    return facts(recording(syncs=sites, **{"replays": (replayed(without_sync_s=0.003),), **known}))


def test_the_line_that_waits_is_named_with_its_cost() -> None:
    cause = finding(host_synchronization_rule(waiting(LINE)))
    assert cause.rule == "host synchronization"
    assert (cause.cost_s, cause.share) == pytest.approx((0.007, 0.7))
    assert cause.estimated and cause.root and cause.leads
    few = {step_parts.FORWARD: 0.0088, step_parts.IDLE_SYNC: 0.0012}  # 12 % of the step wait, then 9 %
    fewer = {step_parts.FORWARD: 0.0091, step_parts.IDLE_SYNC: 0.0009}
    for parts, leads in ((few, True), (fewer, False)):
        assert finding(host_synchronization_rule(facts(recording(parts, syncs=(LINE,))))).leads is leads
    assert evidence_of(cause) == {"model.py:31": 48.0}
    assert "model.py:31" in cause.claim and "x.item()" in cause.claim
    (advice,) = cause.advice
    assert advice.argv == () and advice.label.startswith("model.py:31")


def test_waits_that_only_the_trace_knows_and_many_lines() -> None:
    cause = finding(host_synchronization_rule(waiting(TRACED)))
    assert list(evidence_of(cause)) == ["aten::nonzero"]
    assert cause.evidence[0].source == "trace"
    assert "aten::nonzero" in cause.claim and "aten::nonzero" in cause.advice[0].label
    sites = [dataclasses.replace(LINE, line=line) for line in range(1, 6)]
    cause = finding(host_synchronization_rule(waiting(*sites)))
    assert [advice.label.partition(": ")[0] for advice in cause.advice] == [
        f"model.py:{n}" for n in (1, 2, 3)
    ]
    assert "4 more lines" in cause.claim


@pytest.mark.parametrize(
    "healthy",
    [
        waiting(),
        waiting(dataclasses.replace(LINE, per_step=0.1)),
        facts(recording({step_parts.FORWARD: 0.0099, step_parts.IDLE_SYNC: 0.005}, syncs=(LINE,),
                        replays=(replayed(without_sync_s=0.001),))),
        facts(recording({step_parts.FORWARD: 0.002}, syncs=(LINE,), replays=(replayed(),))),
        facts(),
        facts(device="cpu"),
    ],
    ids=["no line", "logging", "busy GPU", "free waits", "not recorded", "CPU"],
)  # fmt: skip
def test_waits_that_cost_nothing_or_are_unknown_are_no_finding(healthy: StepFacts) -> None:
    assert host_synchronization_rule(healthy) is None


# host-bound, from a recording


def slow_host(**known: Any) -> StepFacts:
    host_s = replayed(fast_host_s=0.006)
    return facts(
        recording({step_parts.FORWARD: 0.006, step_parts.IDLE_HOST: 0.008}, replays=(host_s,), **known)
    )


def test_a_host_that_launches_too_slowly_costs_what_a_fast_one_saves() -> None:
    cause = finding(host_bound_rule(slow_host()))
    assert cause.rule == "host-bound"
    assert cause.cost_s == pytest.approx(0.004)
    assert cause.share == pytest.approx(0.4)
    assert cause.estimated and not cause.symptom
    assert evidence_of(cause) == {"kernels": 500.0, "kernel": pytest.approx(4.0)}
    assert levers(cause) == ["compile=reduce-overhead", "batch_size"]
    assert evidence_of(finding(host_bound_rule(slow_host(kernel_median_s=None)))) == {"kernels": 500.0}


def test_a_host_that_waits_for_the_gpu_is_slow_by_that() -> None:
    both = waiting(LINE, replays=(replayed(without_sync_s=0.006, fast_host_s=0.001),))
    assert finding(host_bound_rule(both)).symptom
    diagnosis = diagnose_facts((), steps=(both,))
    names = [cause.rule for cause in diagnosis.findings]
    assert names.index("host synchronization") < names.index("host-bound")


@pytest.mark.parametrize(
    "healthy",
    [
        slow_host(kernels=None),
        facts(recording(replays=(replayed(fast_host_s=0.0098),))),
        facts(recording(replays=(replayed(without_sync_s=0.004, fast_host_s=0.005),))),
        facts(recording(replays=())),
        facts(slow_host().recording, device="cpu"),
    ],
    ids=["no kernels", "3 %", "only waits", "no replay", "CPU"],
)
def test_a_host_that_is_fast_enough_is_no_finding(healthy: StepFacts) -> None:
    assert host_bound_rule(healthy) is None


# host-bound, from telemetry where nothing was recorded

IDLE = TelemetrySummary(gpu_utilization=0.4, rank_busy_cores=1.0)


def test_a_gpu_that_waits_for_a_busy_core_is_started_too_slowly() -> None:
    cause = finding(host_bound_rule(facts(telemetry=IDLE)))
    evidence = evidence_of(cause)
    assert (evidence["GPU busy"], evidence["busy cores"]) == (0.4, 1.0)
    assert cause.cost_s is None
    assert evidence["step"] == pytest.approx(STEP_S)
    assert levers(cause) == ["compile=reduce-overhead", "batch_size"]
    assert cause.share == 0.0  # what it costs was not measured
    assert levers(finding(host_bound_rule(facts(telemetry=IDLE, compile="reduce-overhead")))) == [
        "batch_size"
    ]


@pytest.mark.parametrize(
    "healthy",
    [
        facts(telemetry=TelemetrySummary(gpu_utilization=0.9, rank_busy_cores=1.0)),
        facts(telemetry=TelemetrySummary(gpu_utilization=0.4, rank_busy_cores=0.5)),
        facts(telemetry=TelemetrySummary(gpu_utilization=0.4)),
        facts(telemetry=TelemetrySummary(rank_busy_cores=1.0)),
        facts(),
        facts(telemetry=IDLE, step_s=0.03),
        facts(telemetry=IDLE, device="cpu"),
        facts(telemetry=IDLE, ranks=2),
    ],
    ids=["busy GPU", "idle core", "no cores", "no GPU", "nothing", "long step", "CPU", "several ranks"],
)
def test_a_gpu_is_not_held_up_by_the_host_without_every_sign_of_it(healthy: StepFacts) -> None:
    assert host_bound_rule(healthy) is None
