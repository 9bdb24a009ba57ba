"""Copy-bound: steps wait for batches that are ready, but not yet on the GPU."""

from scalescope.diagnose.advice import advise
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding

RULE = "copy-bound"
_WORTH = 0.03  # of a step


def rule(facts: Facts) -> Finding | Abstention | None:
    wait, times = facts.input_wait_s, facts.batch_times_s
    if facts.trial.device != "cuda" or wait is None or times is None:
        return None
    if wait.value < _WORTH * facts.step_s or (wait.low is not None and wait.low <= 0.0):
        return None
    loader_s, copy_s = times
    if copy_s <= loader_s:
        return None
    share = wait.value / facts.step_s
    return Finding(
        rule=RULE,
        root=True,
        claim=f"The host spends {copy_s * 1e3:.1f} ms on copying a batch to the GPU and "
        f"{loader_s * 1e3:.1f} ms on waiting for it; batches that are there already would give {share:.0%} "
        "of the time back.",
        lost=share * facts.ranks,
        share=share,
        evidence=(
            Evidence(name="copying", value=copy_s, unit="s", source="the host's clock around it"),
            Evidence(name="waiting", value=loader_s, unit="s", source="the host's clock around it"),
            Evidence(name="input", value=wait.value, unit="s", source="step minus preloaded samples"),
        ),
        advice=(
            *advise(facts, "page-locked memory copies faster", "pin_memory", True),
            *advise(facts, "copy the next batch beside compute", "prefetch_stream", True),
        ),
    )
