"""Random skew: a different rank is late each time, and every step waits for it."""

from scalescope.analysis.scaling.waterfall import INPUT, RANDOM_SKEW
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.results.run_commands import CHECK

RULE = "random skew between ranks"
_EXPLAINS = 0.5  # of the skew


def rule(facts: Facts) -> Finding | Abstention | None:
    lost, term = facts.lost(RANDOM_SKEW), facts.term(RANDOM_SKEW)
    if not lost or term is None or term.time_s is None:
        return None
    return Finding(
        rule=RULE,
        terms=(RANDOM_SKEW,),
        root=True,
        symptom=_is_explained(facts, term.time_s.value + min(0.0, _input_s(facts))),
        claim="A different rank is late each time, and every step waits for it: "
        f"{term.time_s.value * 1e3:.1f} ms per step ({lost:.2f} of {facts.ranks} ranks).",
        lost=lost,
        share=lost / facts.ranks,
        evidence=(
            Evidence(
                name="skew", value=term.time_s.value, unit="s", source="waiting for peers in recorded steps"
            ),
        ),
        advice=(Advice(label="check for other work on the machine", argv=CHECK),),
    )


def _input_s(facts: Facts) -> float:
    """Negative where preloaded batches hold more than usual ones: ranks that train on them skew more, too."""
    term = facts.term(INPUT)
    return 0.0 if term is None or term.time_s is None else term.time_s.value


def _is_explained(facts: Facts, skew_s: float) -> bool:
    """Whether ranks are late by batches that hold more, or by pauses of some ranks every so many steps: these
    are findings by themselves."""
    uneven, pauses = facts.uneven_work, facts.pauses
    by_work_s = 0.0 if uneven is None else uneven.cost_s
    by_pauses_s = 0.0 if pauses is None or len(pauses.origins) == facts.ranks else pauses.cost_s
    return max(by_work_s, by_pauses_s) >= _EXPLAINS * skew_s
