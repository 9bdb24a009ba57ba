"""Unequal links: one is far slower than others of its kind.

A ring over it is as slow as it is; NCCL may avoid it, so the finding says what may be.
"""

from scalescope.analysis.comm.pairs import slow_links
from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.advice import comm_command
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding

RULE = "unequal links"


def rule(facts: Facts) -> Finding | Abstention | None:
    lost = facts.communication_lost
    if facts.ranks < 3 or not lost:
        return None
    pairs_command = comm_command(facts, "--pairs")
    if not facts.pairs:
        return Abstention(rule=RULE, missing="the speed of every pair of ranks", argv=pairs_command)
    slow = slow_links(facts.pairs)
    if not slow:
        return None
    worst = slow[0]
    wasted = lost * (1.0 - worst.bytes_per_s / worst.usual_bytes_per_s)
    names = [link.name for link in slow]
    kind = f" with the same kind of path ({worst.path})" if worst.path else ""
    return Finding(
        rule=RULE,
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
                source="median of its class of paths",
            ),
        ),
        advice=(Advice(label="measure every pair again and check that link", argv=pairs_command),),
    )


def _together(names: list[str]) -> str:
    text = " and ".join(names)
    return text[0].upper() + text[1:]
