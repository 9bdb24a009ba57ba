"""Input-bound: steps wait for samples."""

from scalescope.analysis.waterfall import INPUT
from scalescope.diagnose.advice import advise
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding

RULE = "input-bound"


def rule(facts: Facts) -> Finding | Abstention | None:
    lost, term = facts.lost(INPUT), facts.term(INPUT)
    if not lost or term is None or term.time_s is None:
        return None
    workers = facts.trial.settings.get("num_workers") or 0
    more = max(2, 2 * workers)
    return Finding(
        rule=RULE,
        root=True,
        claim=f"Steps wait {term.time_s.value * 1e3:.1f} ms for samples: preloaded ones would give back "
        f"{lost:.2f} of {facts.ranks} ranks.",
        lost=lost,
        share=lost / facts.ranks,
        evidence=(
            Evidence(
                name="input",
                value=term.time_s.value,
                unit="s",
                source="step minus the same with preloaded samples",
            ),
        ),
        advice=(
            *advise(facts, f"{more} loader processes a rank", "num_workers", more),
            *(advise(facts, "look further ahead", "prefetch_factor", 8) if workers else ()),
        ),
    )
