"""NCCL's log of attached ranks: the variables that switch it on, one file for each rank."""

from collections.abc import Mapping
from pathlib import Path

from scalescope.results.ranks.rank_job import NCCL_LOG_VARIABLE

# What is printed while ranks connect. TUNING would print a line for every collective that is timed.
_SUBSYSTEMS = "INIT,GRAPH,NET,ENV"


def nccl_log_variables(environment: Mapping[str, str], directory: Path) -> dict[str, str]:
    """What makes NCCL log into a file; nothing where the user chose what NCCL logs."""
    if "NCCL_DEBUG" in environment or "NCCL_DEBUG_FILE" in environment:
        return {}
    log = str(directory / "nccl.log")
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": environment.get("NCCL_DEBUG_SUBSYS", _SUBSYSTEMS),
        "NCCL_DEBUG_FILE": log,
        NCCL_LOG_VARIABLE: log,
    }
