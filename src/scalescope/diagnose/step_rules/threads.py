"""Too many CPU threads on one rank: its threads, or its loader's processes, wait for cores.

On several ranks the rule `contention` measures this, against one rank alone.
"""

import statistics

from scalescope.diagnose.advice import advise
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import StepFacts
from scalescope.quantities import counted, percent

RULE = "too many CPU threads"
_WAITS = 0.05  # of the time in which the rank wants a core
_WAITS_FOR_LOADER = 0.1  # the same, where only the loader's processes are too many


def rule(facts: StepFacts) -> Finding | Abstention | None:
    cores, wait = _cores(facts), _waited_share(facts)
    if facts.ranks > 1 or facts.trial.stand_in or cores is None or wait is None:
        return None
    # On a GPU one thread of the host launches kernels, whatever their number is set to.
    threads = 1 if facts.trial.on_gpu else facts.trial.threads_per_rank
    workers = (facts.loading.workers if facts.loading is not None else None) or 0
    crowded = threads > cores
    if not crowded and threads + workers <= cores:
        return None
    cost_s = wait * facts.step_s
    if wait < (_WAITS if crowded else _WAITS_FOR_LOADER) or not facts.is_worth(cost_s):
        return None
    loader = f" and {counted(workers, 'loader process')}" if workers else ""
    crowd = f"{counted(threads, 'thread')}{loader}"
    return facts.finding(
        RULE,
        f"A rank with {crowd} may use {counted(cores, 'core')}: for {percent(wait)} of the time in which its "
        f"threads could run, no core was free.",
        cost_s,
        root=True,
        estimated=True,
        evidence=(
            Evidence(name="threads", value=threads, source="settings"),
            Evidence(name="loader processes", value=workers, source="settings"),
            Evidence(name="cores", value=cores, source="the rank's affinity"),
            Evidence(name="waiting for a core", value=wait, source="the system's scheduler"),
        ),
        advice=_advice(facts, cores, workers, crowded=crowded),
    )


def _cores(facts: StepFacts) -> int | None:
    """That the rank may use: by its affinity, and by what the machine has; None is unknown."""
    known = [cores for cores in (facts.model.rank_cores, facts.cores) if cores is not None]
    return min(known, default=None)


def _waited_share(facts: StepFacts) -> float | None:
    """The share of time without a core; None where it is unknown, or other processes took the cores."""
    loads = facts.configuration.loads
    waits = [wait for load in loads if (wait := load.longest_wait) is not None]
    if not waits or any(load.is_present for load in loads):
        return None
    return statistics.fmean(waits)


def _advice(facts: StepFacts, cores: int, workers: int, *, crowded: bool) -> tuple[Advice, ...]:
    if crowded:
        return advise(facts, "one thread per core", "threads_per_rank", cores)
    fewer = advise(facts, "fewer loader processes", "num_workers", workers // 2)
    return fewer if workers > 1 else ()
