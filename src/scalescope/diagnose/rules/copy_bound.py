"""Copy-bound: steps wait for batches that are ready, but not yet on the GPU."""

from scalescope.diagnose.advice import advise
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding

RULE = "copy-bound"
_WORTH = 0.03  # of a step
_READY = 0.3  # of the wait: a loader that takes less is not what steps wait for


def rule(facts: Facts) -> Finding | Abstention | None:
    wait, times = facts.input_wait_s, facts.batch_times_s
    if not facts.trial.on_gpu or wait is None or times is None:
        return None
    if wait.value < _WORTH * facts.step_s or (wait.low is not None and wait.low <= 0.0):
        return None
    loader_s, copy_s = times
    if loader_s > _READY * wait.value:
        return None
    share = wait.value / facts.step_s
    return Finding(
        rule=RULE,
        root=True,
        claim=f"Batches are ready (the loader takes {loader_s * 1e3:.1f} ms), but copying them blocks the "
        f"host for {copy_s * 1e3:.1f} ms, including kernels that are still queued; with batches already on "
        f"the GPU a step would be {share:.0%} shorter.",
        lost=share * facts.ranks,
        share=share,
        evidence=(
            Evidence(name="copying", value=copy_s, unit="s", source="the host's clock around it"),
            Evidence(name="waiting", value=loader_s, unit="s", source="the host's clock around it"),
            Evidence(name="input", value=wait.value, unit="s", source="step minus preloaded samples"),
        ),
        advice=(
            *advise(facts, "copy the next batch while the GPU computes", "prefetch_stream", True),
            *advise(facts, "copy from page-locked memory", "pin_memory", True),
        ),
    )
