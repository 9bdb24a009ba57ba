"""Recomputation: activations are computed twice to save memory that the GPU has."""

from scalescope.analysis.training.step_waterfall import BACKWARD, OTHER_KERNELS
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import HOST_TERMS, StepFacts
from scalescope.quantities import data_size, in_ms, percent

RULE = "activations are computed twice"
_TERMS = (BACKWARD, OTHER_KERNELS, *HOST_TERMS)
_MUCH = 0.5  # of the GPU's memory: where more is in use, activations may not fit


def rule(facts: StepFacts) -> Finding | Abstention | None:
    cost_s = recomputation_cost_s(facts)
    used, there = facts.configuration.peak_memory_bytes, facts.gpu_memory_bytes
    if not facts.is_worth(cost_s) or used is None or there is None or used > _MUCH * there:
        return None
    return facts.finding(
        RULE,
        "The backward pass computes activations again (activation checkpointing), while "
        f"{percent(used / there)} of the GPU's memory is in use: keeping them would save about "
        f"{in_ms(cost_s)}.",
        cost_s,
        root=True,
        estimated=True,
        terms=_TERMS,
        evidence=(
            Evidence(
                name="memory in use", value=used, unit="bytes", source="torch.cuda.max_memory_allocated"
            ),
            Evidence(name="memory", value=there, unit="bytes", source="the GPU"),
            *_time_evidence(facts),
        ),
        advice=(
            Advice(
                label="leave activation checkpointing out, or use it for fewer layers: "
                f"{data_size(there - used)} are free"
            ),
        ),
    )


def recomputation_cost_s(facts: StepFacts) -> float:
    """What a step takes less if nothing is computed twice: its kernels, and what the host takes to launch
    them where the GPU waits for it."""
    if facts.replay is None:
        return 0.0
    return facts.bounded(facts.replay.recomputation_cost_s, *_TERMS)


def _time_evidence(facts: StepFacts) -> tuple[Evidence, ...]:
    time_s = None if facts.recording is None else facts.recording.recomputed_s
    if time_s is None:
        return ()
    return (Evidence(name="kernels that compute again", value=time_s, unit="s", source="recorded steps"),)
