"""Input-bound: steps wait for samples."""

from scalescope.analysis.scaling.waterfall import INPUT
from scalescope.diagnose.advice import advise, advise_more
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding
from scalescope.diagnose.rules.copy_bound import rule as copies_are_slow

RULE = "input-bound"
_WORTH = 0.03  # of a step


def rule(facts: Facts) -> Finding | Abstention | None:
    wait = facts.input_wait_s
    if wait is None or wait.value < _WORTH * facts.step_s or isinstance(copies_are_slow(facts), Finding):
        return None
    if wait.low is not None and wait.low <= 0.0:
        return None
    share = wait.value / facts.step_s
    workers = facts.trial.num_workers or 0
    more = _more_workers(facts, workers)
    beyond = facts.lost(INPUT) or 0.0
    scaling = beyond > share * facts.ranks / 2.0
    alone = "" if scaling else " One rank waits as well, so this costs speed and not scaling."
    return Finding(
        rule=RULE,
        root=True,
        claim=f"Steps wait {wait.value * 1e3:.1f} ms for samples; with preloaded samples a step would be "
        f"{share:.0%} shorter.{alone}",
        lost=share * facts.ranks,
        share=share,
        evidence=(
            Evidence(
                name="input",
                value=wait.value,
                unit="s",
                source="step minus the same with preloaded samples",
            ),
        ),
        advice=(
            *(advise(facts, f"{more} loader processes per rank", "num_workers", more) if more else ()),
            *(advise_more(facts, "prefetch more batches", "prefetch_factor", 8) if workers else ()),
        ),
    )


def _more_workers(facts: Facts, workers: int) -> int | None:
    """Twice the loader processes, but no more than a rank has cores; None where it has as many already."""
    more = max(2, 2 * workers)
    if facts.cores is not None:
        more = min(more, max(1, facts.cores // -(-facts.ranks // facts.nodes)))
    return more if more > workers else None
