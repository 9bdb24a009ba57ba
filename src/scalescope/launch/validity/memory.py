"""Whether a launch of the memory benchmark is valid."""

from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import RankRecord


def judge(trial: Trial, records: list[RankRecord]) -> Outcome:
    """Every rank must report its peak memory, even if only that it could not be measured."""
    for record in records:
        if "measured/peak" not in record.counters:
            reason = f"rank {record.rank} measured no memory"
            return Outcome(status="invalid", reason=reason, rank=record.rank, records=records)
    return Outcome(status="ok", records=records)
