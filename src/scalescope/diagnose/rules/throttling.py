"""Throttling: a GPU did not run at the speed it could, and what that costs where its rank is the late one.

A power cap that all GPUs share, and one rank alone too, is how they are run: telemetry shows it, and it is
not a finding.
"""

from collections.abc import Sequence

from scalescope.analysis.scaling.waterfall import STRAGGLERS
from scalescope.analysis.telemetry import SlowedGpu
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.quantities import percent
from scalescope.results.run_commands import CHECK
from scalescope.results.topology import plain_uuid

RULE = "GPU slowed down"
_HEALTHY = 0.9  # of the ideal speed
_ADVICE = (Advice(label="check cooling and power limits", argv=CHECK),)


def rule(facts: Facts) -> Finding | Abstention | None:
    slowed = facts.telemetry.slowed_gpus
    late = _of_late_rank(facts)
    capped_by_company = _is_slow(facts) and _one_rank_ran_freely(facts)
    worth_a_finding = [gpu for gpu in slowed if gpu.is_hot or gpu == late or capped_by_company]
    if not worth_a_finding:
        return None
    if facts.has_other_load:  # what others compute heats the GPU and uses its power too
        return Abstention(rule=RULE, missing="the clock without other load", argv=CHECK)
    if late is not None:
        return _costly(facts, late)
    return Finding(
        rule=RULE,
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
        rule=RULE,
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
