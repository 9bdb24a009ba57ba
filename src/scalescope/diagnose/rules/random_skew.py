"""Random skew: a different rank is late each time, and every step waits for it."""

from scalescope.analysis.scaling.waterfall import STRAGGLERS
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.rules.straggler import rule as one_rank_is_late
from scalescope.results.run_commands import CHECK

RULE = "random skew between ranks"


def rule(facts: Facts) -> Finding | Abstention | None:
    lost, term = facts.lost(STRAGGLERS), facts.term(STRAGGLERS)
    if not lost or term is None or term.time_s is None or isinstance(one_rank_is_late(facts), Finding):
        return None
    return Finding(
        rule=RULE,
        term=STRAGGLERS,
        root=True,
        claim="A different rank is late each time, and every step waits for it: "
        f"{term.time_s.value * 1e3:.1f} ms per step ({lost:.2f} of {facts.ranks} ranks).",
        lost=lost,
        share=lost / facts.ranks,
        evidence=(
            Evidence(
                name="skew",
                value=term.time_s.value,
                unit="s",
                source="slowest rank of each step, without communication",
            ),
        ),
        advice=(Advice(label="check for other work on the machine", argv=CHECK),),
    )
