"""Random skew: now one rank is late, now another, and every step waits for whichever it is."""

from scalescope.analysis.scaling.waterfall import STRAGGLERS
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.rules.straggler import rule as one_rank_is_late

RULE = "random skew between ranks"


def rule(facts: Facts) -> Finding | Abstention | None:
    lost, term = facts.lost(STRAGGLERS), facts.term(STRAGGLERS)
    if not lost or term is None or term.time_s is None or isinstance(one_rank_is_late(facts), Finding):
        return None
    return Finding(
        rule=RULE,
        term=STRAGGLERS,
        root=True,
        claim="Steps vary from rank to rank, and each waits for the last: "
        f"{term.time_s.value * 1e3:.1f} ms a step, {lost:.2f} of {facts.ranks} ranks.",
        lost=lost,
        share=lost / facts.ranks,
        evidence=(
            Evidence(
                name="skew",
                value=term.time_s.value,
                unit="s",
                source="slowest rank of each step, sending nothing",
            ),
        ),
        advice=(Advice(label="look for other work on the machine", command="scalescope check"),),
    )
