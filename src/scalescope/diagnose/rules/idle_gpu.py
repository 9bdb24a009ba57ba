"""Host-bound: the GPU waits for the host to launch kernels, not for data, peers or the network."""

from scalescope.diagnose.advice import advise, batch_name
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding

RULE = "the host starts kernels too slowly"
_BUSY = 0.7
_SHORT_STEP_S = 0.02
_ONE_CORE = 0.9  # of a core, all the time


def rule(facts: Facts) -> Finding | Abstention | None:
    one_rank = facts.one_rank
    if not facts.trial.on_gpu or one_rank is None:
        return None
    busy, cores = one_rank.telemetry.gpu_utilization, one_rank.telemetry.rank_busy_cores
    if busy is None or cores is None or busy > _BUSY or cores < _ONE_CORE:
        return None
    if one_rank.step_time_s.value > _SHORT_STEP_S:
        return None
    return Finding(
        rule=RULE,
        claim=f"With one rank alone the GPU is {busy:.0%} busy while a CPU core is busy all the time: the "
        "host cannot launch such short kernels fast enough.",
        lost=0.0,
        share=0.0,
        evidence=(
            Evidence(name="GPU busy", value=busy, source="NVML"),
            Evidence(name="busy cores", value=cores, source="/proc"),
            Evidence(name="step", value=one_rank.step_time_s.value, unit="s", source="one rank alone"),
        ),
        advice=(
            *advise(facts, "replay kernels as CUDA graphs", "compile", "reduce-overhead"),
            *advise(facts, "a larger batch", batch_name(facts)),
        ),
    )
