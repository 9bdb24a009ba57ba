"""Rules about ranks: late ones, ranks that slow each other down, GPUs that are shared or throttled."""

from collections.abc import Sequence

from scalescope.analysis.culprit import Straggler
from scalescope.analysis.scaling.waterfall import (
    COMMUNICATION,
    CONTENTION,
    INPUT,
    RANDOM_SKEW,
    SMALLER_BATCH,
    STRAGGLERS,
    Term,
)
from scalescope.analysis.telemetry import SlowedGpu
from scalescope.diagnose.advice import advise
from scalescope.diagnose.exchange import is_bound_by_network
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.quantities import percent
from scalescope.results.run_commands import CHECK
from scalescope.results.topology import plain_uuid

# ---- Straggling rank: one rank is persistently slower than the others


STRAGGLER = "straggling rank"
_BEHIND = 0.05  # of a step
_EXPLAINS = 0.5  # of the delay


def straggler_rule(facts: Facts) -> Finding | Abstention | None:
    lost, culprit = facts.culprit_lost, facts.culprit
    if culprit is None or culprit.time_s < _BEHIND * facts.step_s:
        return None
    return Finding(
        rule=STRAGGLER,
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
    """Whether that rank is late because its batches hold more, which is a separate finding."""
    uneven = facts.uneven_work
    return (
        uneven is not None
        and uneven.heaviest == culprit.rank
        and uneven.behind_s >= _EXPLAINS * culprit.time_s
    )


def _pauses(facts: Facts, culprit: Straggler) -> bool:
    """Whether that rank is late because it pauses periodically, which is a separate finding."""
    pauses = facts.pauses
    return (
        pauses is not None
        and pauses.origins == (culprit.rank,)
        and pauses.cost_s >= _EXPLAINS * culprit.time_s
    )


# ---- Random skew: a different rank is late each time, and every step waits for it


RANDOM_SKEW_RULE = "random skew between ranks"


def random_skew_rule(facts: Facts) -> Finding | Abstention | None:
    lost, term = facts.lost(RANDOM_SKEW), facts.term(RANDOM_SKEW)
    if not lost or term is None or term.time_s is None:
        return None
    return Finding(
        rule=RANDOM_SKEW_RULE,
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


# ---- Contention: ranks compete for cores, memory or power


CONTENTION_RULE = "ranks slow each other down"
THREADS = "too many CPU threads"


def _included(term: Term) -> str:
    """What else this is, where no launch separates it."""
    return f" This includes {' and '.join(f'the {name}' for name in term.includes)}." if term.includes else ""


def contention_rule(facts: Facts) -> Finding | Abstention | None:
    lost, term = facts.lost(CONTENTION), facts.term(CONTENTION)
    if not lost or term is None or term.time_s is None or facts.trial.oversubscribe:
        return None
    if SMALLER_BATCH in term.includes:  # which often costs far more than what ranks do to each other
        return Abstention(rule=CONTENTION_RULE, missing="one rank's step time with its share of the batch")
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
        return Abstention(rule=CONTENTION_RULE, missing="the speed without other load", argv=CHECK)
    return Finding(
        rule=CONTENTION_RULE,
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


# ---- Ranks share a GPU: the result is not a scaling measurement


SHARED_GPU = "ranks share a GPU"


def shared_gpu_rule(facts: Facts) -> Finding | Abstention | None:
    if not facts.trial.oversubscribe:
        return None
    lost = max(0.0, facts.ranks * (1.0 - facts.row.efficiency.value))
    return Finding(
        rule=SHARED_GPU,
        root=True,
        claim=f"{facts.ranks} ranks share GPUs and take turns on them: this is not a scaling measurement.",
        lost=lost,
        share=lost / facts.ranks,
        evidence=(Evidence(name="oversubscribe", value="true", source="settings"),),
        advice=(Advice(label="check which rank uses which GPU", argv=CHECK),),
    )


# ---- Throttling: a GPU did not run at the speed it could, and what that costs where its rank is the late one


THROTTLING = "GPU slowed down"
_HEALTHY = 0.9  # of the ideal speed
_ADVICE = (Advice(label="check cooling and power limits", argv=CHECK),)


def throttling_rule(facts: Facts) -> Finding | Abstention | None:
    slowed = facts.telemetry.slowed_gpus
    late = _of_late_rank(facts)
    capped_by_company = _is_slow(facts) and _one_rank_ran_freely(facts)
    worth_a_finding = [gpu for gpu in slowed if gpu.is_hot or gpu == late or capped_by_company]
    if not worth_a_finding:
        return None
    if facts.has_other_load:  # what others compute heats the GPU and uses its power too
        return Abstention(rule=THROTTLING, missing="the clock without other load", argv=CHECK)
    if late is not None:
        return _costly(facts, late)
    return Finding(
        rule=THROTTLING,
        claim=f"{'; '.join(f'{_name(facts, gpu)} was slowed down {gpu.text}' for gpu in worth_a_finding)}.",
        lost=0.0,
        share=0.0,
        evidence=_evidence(facts, worth_a_finding),
        advice=_ADVICE,
    )


def _is_slow(facts: Facts) -> bool:
    return facts.row.efficiency.value < _HEALTHY


def _one_rank_ran_freely(facts: Facts) -> bool:
    """Whether nothing held the GPU of one rank alone back; False where that was not sampled."""
    telemetry = None if facts.one_rank is None else facts.one_rank.telemetry
    return telemetry is not None and telemetry.knows_gpu and not telemetry.slowed_gpus


def _costly(facts: Facts, gpu: SlowedGpu) -> Finding:
    """All ranks wait for the one whose GPU was slowed down."""
    lost, culprit = facts.culprit_lost, facts.culprit
    assert culprit is not None
    return Finding(
        rule=THROTTLING,
        terms=(STRAGGLERS,),
        root=True,
        claim=f"{_name(facts, gpu)} was slowed down {gpu.text}: rank {culprit.rank} is "
        f"{culprit.time_s * 1e3:.1f} ms per step late, and all ranks wait for it.",
        lost=lost,
        share=lost / facts.ranks,
        evidence=_evidence(facts, [gpu]),
        advice=_ADVICE,
    )


def _of_late_rank(facts: Facts) -> SlowedGpu | None:
    """The slowed GPU of the rank that all wait for, unless all GPUs were slowed for the same reasons."""
    culprit = facts.culprit
    if culprit is None or culprit.rank >= len(facts.gpu_uuids):
        return None
    wanted = plain_uuid(facts.gpu_uuids[culprit.rank])
    gpu = next(
        (gpu for gpu in facts.telemetry.slowed_gpus if wanted and plain_uuid(gpu.uuid) == wanted), None
    )
    if gpu is None or gpu.is_hot:
        return gpu
    alike = [other for other in facts.telemetry.slowed_gpus if set(other.reasons) >= set(gpu.reasons)]
    return gpu if len(alike) < len(set(facts.gpu_uuids)) else None


def _name(facts: Facts, gpu: SlowedGpu) -> str:
    """`The GPU of rank 3 on n2`, or its id where no rank is known to use it."""
    uuid = plain_uuid(gpu.uuid)
    ranks = [str(rank) for rank, other in enumerate(facts.gpu_uuids) if uuid and plain_uuid(other) == uuid]
    where = "" if gpu.host is None else f" on {gpu.host}"
    if not ranks:
        return f"GPU {uuid}{where}"
    return f"The GPU of rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}{where}"


def _evidence(facts: Facts, gpus: Sequence[SlowedGpu]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            name=f"GPU {plain_uuid(gpu.uuid)}{'' if gpu.host is None else f' of {gpu.host}'}",
            value=", ".join(f"{name} {percent(share)}" for name, share in gpu.reasons.items()),
            source="NVML",
        )
        for gpu in gpus
    )


# ---- Negative scaling: several ranks are slower than one


NEGATIVE_SCALING = "negative scaling"


def negative_scaling_rule(facts: Facts) -> Finding | Abstention | None:
    speedup = facts.row.speedup
    sure = speedup.high is None or speedup.high < 1.0
    if facts.row.is_baseline or facts.row.baseline_ranks != 1 or speedup.value >= 1.0 or not sure:
        return None
    lost = facts.ranks - speedup.value
    largest = facts.waterfall.largest if facts.waterfall is not None else None
    why = ""
    evidence = [Evidence(name="speedup", value=speedup.value, source="throughput against plain training")]
    if largest is not None and largest.lost is not None and largest.lost.value > 0.5 * lost:
        why = f", mostly because of {largest.name}"
        evidence.append(Evidence(name="largest loss", value=largest.name, source="the waterfall"))
    return Finding(
        rule=NEGATIVE_SCALING,
        claim=f"{facts.ranks} ranks are slower than one ({speedup.value:.2f}×){why}.",
        lost=lost,
        share=lost / facts.ranks,
        symptom=True,
        evidence=tuple(evidence),
    )
