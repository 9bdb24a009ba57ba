"""Network slower than its hardware: the links that were found should carry far more than they do."""

from scalescope.analysis.comm.expected import Expected
from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.advice import comm_command
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.network import is_latency, is_slow_network, rate_of
from scalescope.results.run_commands import CHECK

RULE = "network slower than its hardware"


def rule(facts: Facts) -> Finding | Abstention | None:
    lost, expected = facts.communication_lost, facts.expected
    if not lost or facts.trial.link is not None or facts.exchange_s is None or facts.sent_bytes is None:
        return None
    if is_latency(facts) is not False or not facts.transfer_explains_wait:
        return None
    if not isinstance(expected, Expected):
        # Nobody publishes what gloo reaches inside a host: there is nothing to wait for.
        if expected is None or expected.is_loopback or facts.trial.split_gpu or facts.trial.oversubscribe:
            return None
        return Abstention(
            rule=RULE, missing=f"what this network should deliver ({expected.missing})", argv=CHECK
        )
    if not is_slow_network(facts):
        return None
    rate = rate_of(facts)
    return Finding(
        rule=RULE,
        term=COMMUNICATION if facts.communication_is_measured else "",
        root=True,
        claim=f"Gradients travel at {rate / 1e9:,.2f} GB/s; {expected.path} should carry "
        f"{expected.bytes_per_s / 1e9:,.0f} GB/s (source: {expected.source}).",
        lost=lost,
        share=lost / facts.ranks,
        evidence=(
            Evidence(name="bus bandwidth", value=rate, unit="bytes/s", source=facts.exchange_source),
            Evidence(name="expected", value=expected.bytes_per_s, unit="bytes/s", source=expected.source),
        ),
        advice=(
            Advice(label="check the path that NCCL uses", argv=CHECK),
            Advice(label="measure every pair", argv=comm_command(facts, "--pairs")),
        ),
    )
