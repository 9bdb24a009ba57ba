"""Small kernels: the GPU is busy, but with element-by-element kernels that could be fused.

What fusing saves is estimated from counts. Such kernels stand in chains between all other kernels, so there
are at most as many chains as other kernels, plus one; a chain leaves at least one kernel. In a chain every
kernel reads its operands and writes its result to memory. Fused, a chain keeps what one kernel hands to the
next: of the traffic of each kernel that goes away, all is saved where it has one operand, and two thirds
where a second one is read from memory all the same. Which have two is not known, so the middle is claimed.
"""

from scalescope.analysis.recording import StepRecording
from scalescope.analysis.training.step_waterfall import IDLE_HOST, IDLE_SYNC
from scalescope.diagnose.advice import advise
from scalescope.diagnose.finding import Abstention, Evidence, Finding
from scalescope.diagnose.step_facts import KERNEL_TERMS, StepFacts
from scalescope.quantities import in_ms
from scalescope.results.traces import step_parts

RULE = "many small kernels"
_WORTH = 0.1  # of a step: the cost is an upper guess
_IDLE = 0.2  # of a step: beyond that the host decides, and not what kernels do
_CHAIN = 1.5  # kernels at least, in the mean: shorter chains are not worth fusing
_TRAFFIC_SAVED = 5.0 / 6.0


def rule(facts: StepFacts) -> Finding | Abstention | None:
    recording, trial = facts.recording, facts.trial
    if not trial.on_gpu or recording is None or trial.is_compiled or _idle_share(facts) > _IDLE:
        return None
    kernels, time_s = recording.elementwise_kernels, recording.elementwise_s
    if not kernels or time_s is None or recording.kernels is None:
        return None
    chains = _chains(recording.kernels, kernels, recording.optimizer_kernels or 0.0)
    if kernels < _CHAIN * chains:
        return None
    saved_s = facts.of_kernels(_TRAFFIC_SAVED * (1.0 - chains / kernels) * time_s)
    if saved_s < _WORTH * facts.step_s:
        return None
    return facts.finding(
        RULE,
        f"{kernels:,.0f} of {recording.kernels:,.0f} kernels per step compute element by element, "
        f"{in_ms(time_s)} together, and each reads and writes GPU memory. Fusing them would save "
        f"about {in_ms(saved_s)}.",
        saved_s,
        estimated=True,
        terms=KERNEL_TERMS,
        evidence=_evidence(recording, kernels, time_s),
        advice=advise(facts, "fuse kernels with torch.compile", "compile", "default"),
    )


def _chains(kernels: float, elementwise: float, of_optimizer: float) -> float:
    """At most: between any two kernels of the model that are something else."""
    return max(0.0, kernels - elementwise - of_optimizer) + 1.0


def _idle_share(facts: StepFacts) -> float:
    """Of a step, in which the GPU waits for the host."""
    if facts.waterfall is not None:
        idle_s = facts.waterfall.time_s(IDLE_HOST) + facts.waterfall.time_s(IDLE_SYNC)
        return idle_s / facts.waterfall.step_s
    assert facts.recording is not None
    parts = facts.recording.parts
    idle_s = parts.get(step_parts.IDLE_HOST, 0.0) + parts.get(step_parts.IDLE_SYNC, 0.0)
    return idle_s / facts.recording.recorded_step_s


def _evidence(recording: StepRecording, kernels: float, time_s: float) -> tuple[Evidence, ...]:
    median = recording.kernel_median_s
    return (
        Evidence(name="element-by-element kernels", value=kernels, unit="per step", source="recorded steps"),
        Evidence(name="their time", value=time_s, unit="s", source="recorded steps"),
        *(
            ()
            if median is None
            else (Evidence(name="median kernel", value=median, unit="s", source="recorded steps"),)
        ),
    )
