"""Network errors: error counters of InfiniBand or RoCE ports grew while ranks exchanged data."""

from scalescope.analysis.checks.node_facts import ports_with_errors
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Advice, Evidence, Finding
from scalescope.results.run import Run
from scalescope.results.run_commands import CHECK

RULE = "network errors"


def rule(run: Run, cases: tuple[Facts, ...]) -> Finding | None:
    ports = ports_with_errors(run)
    if not ports:
        return None
    return Finding(
        rule=RULE,
        claim=f"Error counters of the network grew during the launches: {'; '.join(p.text for p in ports)}. "
        "Packets may have been sent again.",
        lost=0.0,  # what sending again takes is part of communication, and not measured by itself
        share=0.0,
        evidence=tuple(
            Evidence(
                name=f"{port.port} of {port.host}",
                value=", ".join(f"{name} +{grown}" for name, grown in port.counters.items()),
                source="/sys/class/infiniband, before and after each launch",
            )
            for port in ports
        ),
        advice=(Advice(label="check the cables and the switch ports of these links", argv=CHECK),),
    )
