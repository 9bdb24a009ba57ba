"""Contention: ranks compete for cores, memory or power."""

from scalescope.analysis.scaling.waterfall import COMMUNICATION, CONTENTION, SMALLER_BATCH, STRAGGLERS, Term
from scalescope.diagnose.advice import advise
from scalescope.diagnose.exchange import is_bound_by_network
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.results.run_commands import CHECK

RULE = "ranks slow each other down"
THREADS = "too many CPU threads"


def _included(term: Term) -> str:
    """What else this is, where no launch separates it."""
    return f" This includes {' and '.join(f'the {name}' for name in term.includes)}." if term.includes else ""


def rule(facts: Facts) -> Finding | Abstention | None:
    lost, term = facts.lost(CONTENTION), facts.term(CONTENTION)
    if not lost or term is None or term.time_s is None or facts.trial.oversubscribe:
        return None
    if SMALLER_BATCH in term.includes:  # which often costs far more than what ranks do to each other
        return Abstention(rule=RULE, missing="what one rank takes with its share of the batch")
    threads, cores = facts.trial.threads_per_rank, facts.cores
    on_cores = not facts.trial.on_gpu and not facts.trial.stand_in
    crowded = on_cores and cores is not None and threads * facts.ranks > cores
    measured = Evidence(
        name="contention",
        value=term.time_s.value,
        unit="s",
        source="ranks without communication against one rank alone",
    )
    if crowded:
        fair = max(1, (cores or 1) // facts.ranks)
        # Sending threads and late ranks need the same cores, unless a slow network explains them.
        others = () if is_bound_by_network(facts) else (STRAGGLERS, COMMUNICATION)
        at_most = lost + sum(facts.lost(name) or 0.0 for name in others)
        return Finding(
            rule=THREADS,
            terms=(CONTENTION, *others),
            root=True,
            claim=f"{facts.ranks} ranks with {threads} threads each share {cores} cores. This alone costs "
            f"{term.time_s.value * 1e3:.1f} ms per step ({lost:.2f} of {facts.ranks} ranks); including sends "
            f"that wait for a core, up to {at_most:.2f} ranks.{_included(term)}",
            lost=at_most,
            share=at_most / facts.ranks,
            evidence=(measured, Evidence(name="threads", value=threads * facts.ranks, source="settings")),
            advice=advise(facts, "one thread per core", "threads_per_rank", fair),
        )
    if facts.has_other_load:  # it slows ranks down in the same way
        return Abstention(rule=RULE, missing="the speed without other load", argv=CHECK)
    return Finding(
        rule=RULE,
        terms=(CONTENTION,),
        root=True,
        claim=f"Ranks slow each other down by {term.time_s.value * 1e3:.1f} ms per step without exchanging "
        f"anything: they share memory bandwidth, cache or power ({lost:.2f} of {facts.ranks} ranks)."
        f"{_included(term)}",
        lost=lost,
        share=lost / facts.ranks,
        evidence=(measured,),
        advice=(Advice(label="check how ranks are placed", argv=CHECK),),
    )
