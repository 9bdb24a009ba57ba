"""Socket fall-back: NCCL sends over TCP, because it found, or was allowed, nothing better."""

from scalescope.analysis.scaling.waterfall import EXPOSED
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding

RULE = "NCCL fell back to sockets"


def rule(facts: Facts) -> Finding | Abstention | None:
    if facts.trial.backend != "nccl" or facts.nccl is None or not facts.nccl.uses_sockets:
        return None
    if facts.trial.split_gpu or facts.trial.oversubscribe:
        return None  # ranks of one GPU can only talk that way: it was asked for
    lost = facts.communication_lost or 0.0
    return Finding(
        rule=RULE,
        term=EXPOSED if facts.communication_is_measured else "",
        root=True,
        claim="NCCL sends gradients through TCP sockets: no NVLink, shared memory or InfiniBand was found or "
        "allowed.",
        lost=lost,
        share=lost / facts.ranks,
        evidence=(
            Evidence(name="transport", value=", ".join(facts.nccl.transports), source="NCCL's own log"),
            Evidence(name="network", value=facts.nccl.network or "unknown", source="NCCL's own log"),
        ),
        advice=(
            Advice(
                label="look for NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_IB_DISABLE and missing devices",
                command="scalescope check",
            ),
        ),
    )
