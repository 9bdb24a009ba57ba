"""Communication-bound by bandwidth: what is exposed is bytes over a link, not the start of exchanges."""

from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.advice import comm_command, fewer_bytes
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding
from scalescope.diagnose.network import is_bound_by_network, is_latency, of_the_expected, rate_of

RULE = "communication-bound by bandwidth"
# A network that is not known to be slow is not to blame first: there is too little work beside it.
_NOT_THE_ROOT = 0.9


def rule(facts: Facts) -> Finding | Abstention | None:
    lost, exchange_s, gradient = facts.communication_lost, facts.exchange_s, facts.sent_bytes
    if not lost:
        return None
    if exchange_s is None or gradient is None:
        return Abstention(
            rule=RULE,
            missing="how fast ranks exchange as many bytes as the gradients have",
            argv=comm_command(facts, "--collective", "all_reduce"),
        )
    if (latency := is_latency(facts)) is None:
        return Abstention(
            rule=RULE,
            missing="how long the smallest exchange takes",
            argv=comm_command(facts, "--collective", "all_reduce"),
        )
    if latency:
        return None
    if not facts.transfer_explains_wait:
        return Abstention(rule=RULE, missing="what ranks wait for (far longer than sending takes)")
    bound, rate = is_bound_by_network(facts), rate_of(facts)
    source, apart = facts.exchange_source, facts.communication_is_measured
    most = "" if apart else "at most "
    by = "step minus the same step without communication" if apart else "loss that no other term explains"
    return Finding(
        rule=RULE,
        term=COMMUNICATION if apart else "",
        root=bound and apart,
        claim=f"Sending {gradient / 1e6:.1f} MB of gradients takes {exchange_s * 1e3:.0f} ms at "
        f"{rate / 1e6:,.1f} MB/s{of_the_expected(facts)}; waiting for it costs {most}{lost:.2f} of "
        f"{facts.ranks} ranks.",
        lost=lost,
        share=lost / facts.ranks * (1.0 if bound else _NOT_THE_ROOT),
        evidence=(
            Evidence(name="gradients sent", value=gradient, unit="bytes", source="the model's parameters"),
            Evidence(name="exchange", value=exchange_s, unit="s", source=source),
            Evidence(name="bus bandwidth", value=rate, unit="bytes/s", source=source),
            Evidence(name="exposed", value=lost, unit="ranks", source=by),
        ),
        advice=fewer_bytes(facts),
    )
