"""Memory near its limit: the next larger batch, or a fragmented allocator, will not fit."""

from scalescope.diagnose.advice import this_job
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.quantities import percent
from scalescope.results.run_commands import command_on

RULE = "memory is nearly full"
_FULL = 0.92


def rule(facts: Facts) -> Finding | Abstention | None:
    used, there = facts.telemetry.gpu_memory_bytes, facts.gpu_memory_bytes
    if used is None or there is None or used < _FULL * there:
        return None
    return Finding(
        rule=RULE,
        claim=f"{percent(used / there)} of the GPU's memory is in use.",
        lost=0.0,
        share=0.0,
        evidence=(
            Evidence(name="used", value=used, unit="bytes", source="NVML"),
            Evidence(name="total", value=there, unit="bytes", source="the GPU"),
        ),
        advice=(_advice(facts),),
    )


def _advice(facts: Facts) -> Advice:
    if facts.trial.is_command:  # whose memory is not measured
        return Advice(label="save memory: a smaller batch, torch.utils.checkpoint, or FSDP")
    return Advice(
        label="see what uses the memory, and what would save some",
        argv=command_on(facts.path, "memory", this_job(facts)),
    )
