"""Throttling: the GPU did not run at the speed it could."""

from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding

RULE = "the GPU was slowed down"
_FULL = 0.99  # of the clock: no loss worth a figure


def rule(facts: Facts) -> Finding | Abstention | None:
    telemetry = facts.telemetry
    if not telemetry.slowdowns:
        return None
    if facts.has_other_load:  # what others compute heats the GPU and uses its power too
        return Abstention(rule=RULE, missing="the clock without other load", command="scalescope check")
    speed = ""
    if telemetry.sm_clock_hz is not None and telemetry.sm_clock_limit_hz:
        share = telemetry.sm_clock_hz / telemetry.sm_clock_limit_hz
        speed = f" to {share:.0%} of its clock" if share < _FULL else ""
    return Finding(
        rule=RULE,
        claim=f"The GPU was slowed down{speed} by: {', '.join(telemetry.slowdowns)}.",
        lost=0.0,
        share=0.0,
        evidence=(Evidence(name="slowdowns", value=", ".join(telemetry.slowdowns), source="NVML"),),
        advice=(Advice(label="check cooling and power limits", command="scalescope check"),),
    )
