"""Socket fall-back: NCCL sends over TCP, because it found, or was allowed, nothing better."""

from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.results.run_commands import CHECK

RULE = "NCCL fell back to sockets"


def rule(facts: Facts) -> Finding | Abstention | None:
    if facts.trial.backend != "nccl" or facts.nccl is None or not facts.nccl.uses_sockets:
        return None
    if facts.trial.split_gpu or facts.trial.oversubscribe:
        return None  # ranks on one GPU have no other way
    lost = facts.communication_lost or 0.0
    return Finding(
        rule=RULE,
        terms=(COMMUNICATION,) if facts.communication_is_measured else (),
        root=True,
        claim="NCCL sends gradients through TCP sockets: NVLink, shared memory and InfiniBand are missing or "
        "disabled.",
        lost=lost,
        share=lost / facts.ranks,
        evidence=(
            Evidence(name="transport", value=", ".join(facts.nccl.transports), source="NCCL's log"),
            Evidence(name="network", value=facts.nccl.network or "unknown", source="NCCL's log"),
        ),
        advice=(
            Advice(
                label="check NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_IB_DISABLE and the devices",
                argv=CHECK,
            ),
        ),
    )
