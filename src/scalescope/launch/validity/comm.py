"""Whether a launch of the communication benchmark is valid."""

from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import RankRecord


def judge(trial: Trial, records: list[RankRecord]) -> Outcome:
    """Every element of every result must be the predicted one."""
    for record in records:
        for name, count in record.counters.items():
            if name.endswith("/wrong") and count:
                case = name.removesuffix("/wrong")
                reason = f"{count} wrong elements in {case} on rank {record.rank}"
                return Outcome(status="invalid", reason=reason, rank=record.rank, records=records)
    return Outcome(status="ok", records=records)
