"""Straggling rank: one rank is persistently slower than the others."""

from scalescope.analysis.culprit import Straggler
from scalescope.analysis.scaling.waterfall import STRAGGLERS
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.results.run_commands import CHECK

RULE = "straggling rank"
_BEHIND = 0.05  # of a step
_EXPLAINS = 0.5  # of the delay


def rule(facts: Facts) -> Finding | Abstention | None:
    lost, culprit = facts.culprit_lost, facts.culprit
    if culprit is None or culprit.time_s < _BEHIND * facts.step_s:
        return None
    return Finding(
        rule=RULE,
        terms=(STRAGGLERS,),
        root=True,
        symptom=_has_more_work(facts, culprit) or _pauses(facts, culprit),
        claim=f"Rank {culprit.rank} is {culprit.time_s * 1e3:.1f} ms per step slower than the others in all "
        f"launches: all ranks wait for it ({lost:.2f} of {facts.ranks} ranks).",
        lost=lost,
        share=lost / facts.ranks,
        evidence=(
            Evidence(name="rank", value=culprit.rank, source="steps without communication"),
            Evidence(name="behind", value=culprit.time_s, unit="s", source="steps without communication"),
        ),
        advice=(Advice(label="check that rank's device, clocks and neighbours", argv=CHECK),),
    )


def _has_more_work(facts: Facts, culprit: Straggler) -> bool:
    """Whether that rank is late because its batches hold more, which is a finding by itself."""
    uneven = facts.uneven_work
    return (
        uneven is not None
        and uneven.heaviest == culprit.rank
        and uneven.behind_s >= _EXPLAINS * culprit.time_s
    )


def _pauses(facts: Facts, culprit: Straggler) -> bool:
    """Whether that rank is late because it pauses every so many steps, which is a finding by itself."""
    pauses = facts.pauses
    return (
        pauses is not None
        and pauses.origins == (culprit.rank,)
        and pauses.cost_s >= _EXPLAINS * culprit.time_s
    )
