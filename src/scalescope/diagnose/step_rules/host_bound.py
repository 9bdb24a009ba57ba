"""Host-bound: the GPU waits for the host to launch kernels, not for data, peers or its own results."""

from scalescope.diagnose.advice import advise, batch_name
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import HOST_TERMS, StepFacts
from scalescope.diagnose.step_rules.allocator_retries import requests_cost_s
from scalescope.diagnose.step_rules.garbage_collection import pauses_cost_s
from scalescope.diagnose.step_rules.recompilation import uncompiled_cost_s
from scalescope.diagnose.step_rules.recomputation import recomputation_cost_s
from scalescope.diagnose.step_rules.unfused_optimizer import fused_cost_s
from scalescope.quantities import in_ms, milliseconds, percent

RULE = "host-bound"
_WORTH = 0.05  # of a step: a healthy job's GPU waits for its host now and then
_CAUSES = 0.2  # of the cost: then what launches so many kernels is a cause, and stands before this
_BUSY = 0.7
_SHORT_STEP_S = 0.02
_ONE_CORE = 0.9  # of a core, all the time


def rule(facts: StepFacts) -> Finding | Abstention | None:
    if not facts.trial.on_gpu:
        return None
    if facts.recording is None or facts.replay is None:
        return _by_telemetry(facts)
    cost_s, kernels = facts.bounded(facts.replay.host_cost_s, *HOST_TERMS), facts.recording.kernels
    if kernels is None or cost_s < _WORTH * facts.step_s:
        return None
    # Why the host cannot run ahead is a finding by itself.
    why_s = (facts.wait_cost_s, requests_cost_s(facts), pauses_cost_s(facts), uncompiled_cost_s(facts))
    launches_s = (fused_cost_s(facts), recomputation_cost_s(facts))
    median = facts.recording.kernel_median_s
    length = "" if median is None else f" of {median * 1e6:.0f} µs in the median"
    return facts.finding(
        RULE,
        f"The GPU waits for the host to launch {kernels:,.0f} kernels per step{length}: with a host that is "
        f"fast enough a step would take about {milliseconds(facts.timed_s - cost_s)} instead of "
        f"{in_ms(facts.timed_s)}.",
        cost_s,
        estimated=True,
        symptom=any(map(facts.is_worth, why_s)) or max(launches_s) > _CAUSES * cost_s,
        terms=HOST_TERMS,
        evidence=(
            Evidence(name="kernels", value=kernels, unit="per step", source="trace"),
            *(
                [Evidence(name="kernel", value=median * 1e6, unit="µs", source="trace, the median")]
                if median is not None
                else []
            ),
        ),
        advice=_advice(facts),
    )


def _advice(facts: StepFacts) -> tuple[Advice, ...]:
    return (
        *advise(facts, "replay kernels as CUDA graphs", "compile", "reduce-overhead"),
        *advise(facts, "a larger batch", batch_name(facts)),
    )


def _by_telemetry(facts: StepFacts) -> Finding | None:
    """Without a recording: a GPU that is idle while a core is busy all the time, on one rank."""
    telemetry = facts.configuration.telemetry
    busy, cores = telemetry.gpu_utilization, telemetry.rank_busy_cores
    if facts.ranks > 1 or busy is None or cores is None or busy > _BUSY or cores < _ONE_CORE:
        return None
    if facts.step_s > _SHORT_STEP_S:
        return None
    return facts.finding(
        RULE,
        f"With one rank alone the GPU is {percent(busy)} busy while a CPU core is busy all the time: the "
        "host cannot launch such short kernels fast enough.",
        0.0,
        evidence=(
            Evidence(name="GPU busy", value=busy, source="NVML"),
            Evidence(name="busy cores", value=cores, source="/proc"),
            Evidence(name="step", value=facts.step_s, unit="s", source="one rank alone"),
        ),
        advice=_advice(facts),
    )
