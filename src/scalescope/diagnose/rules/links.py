"""Rules about links between ranks: NCCL on sockets, and pairs that are slower than their kind."""

from scalescope.analysis.comm.pairs import slow_links
from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.advice import comm_command
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.results.run_commands import CHECK

# ---- Socket fall-back: NCCL sends over TCP, because it found, or was allowed, nothing better


SOCKET_FALLBACK = "NCCL fell back to sockets"


def socket_fallback_rule(facts: Facts) -> Finding | Abstention | None:
    if facts.trial.backend != "nccl" or facts.nccl is None or not facts.nccl.uses_sockets:
        return None
    if facts.trial.split_gpu or facts.trial.oversubscribe:
        return None  # ranks on one GPU have no other way
    lost = facts.communication_lost or 0.0
    return Finding(
        rule=SOCKET_FALLBACK,
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


# ---- Unequal links: one is far slower than others of its kind


UNEQUAL_LINKS = "unequal links"


def unequal_links_rule(facts: Facts) -> Finding | Abstention | None:
    lost = facts.communication_lost
    if facts.ranks < 3 or not lost:
        return None
    pairs_command = comm_command(facts, "--pairs")
    if not facts.pairs:
        return Abstention(rule=UNEQUAL_LINKS, missing="the speed of every pair of ranks", argv=pairs_command)
    slow = slow_links(facts.pairs)
    if not slow:
        return None
    worst = slow[0]
    wasted = lost * (1.0 - worst.bytes_per_s / worst.usual_bytes_per_s)
    names = [link.name for link in slow]
    kind = f" with the same kind of path ({worst.path})" if worst.path else ""
    return Finding(
        rule=UNEQUAL_LINKS,
        terms=(COMMUNICATION,) if facts.communication_is_measured else (),
        root=True,
        claim=f"{_together(names)} carries {worst.bytes_per_s / 1e6:,.0f} MB/s, others{kind} carry "
        f"{worst.usual_bytes_per_s / 1e6:,.0f} MB/s: this may slow every exchange, unless the backend avoids "
        "it.",
        lost=wasted,
        share=wasted / facts.ranks,
        evidence=(
            Evidence(name="slow links", value=", ".join(names), source="pair by pair"),
            Evidence(name="slowest", value=worst.bytes_per_s, unit="bytes/s", source="pair by pair"),
            Evidence(
                name="usual",
                value=worst.usual_bytes_per_s,
                unit="bytes/s",
                source="median of this kind of path",
            ),
        ),
        advice=(Advice(label="measure every pair again and check that link", argv=pairs_command),),
    )


def _together(names: list[str]) -> str:
    text = " and ".join(names)
    return text[0].upper() + text[1:]
