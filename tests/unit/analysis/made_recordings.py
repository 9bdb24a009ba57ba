"""Recorded launches made up from what every rank does in a step: every number in them is known."""

from collections.abc import Sequence

from scalescope.experiment.recordings import arrivals_of
from scalescope.experiment.trial import Trial
from scalescope.results.result import RankRecord, Result
from scalescope.results.traces.summary import TraceSummary

from .made_results import make_result

STEPS = 3


def recorded_result(
    trial: Trial,
    compute_s: Sequence[float],
    transfer_s: float,
    *,
    hidden_s: float = 0.0,
    idle_host_s: float = 0.0,
    launch: int = 0,
) -> Result:
    """Ranks that compute for so long and then exchange, once in a step; the exchange may begin before compute
    ends, so that compute hides the first part of it."""
    last = max(compute_s)
    summaries = []
    for mine in compute_s:
        duration = last - mine + transfer_s + hidden_s
        exposed = duration - hidden_s
        summaries.append(
            TraceSummary(
                parts={
                    "step_s": [mine + exposed + idle_host_s] * STEPS,
                    "compute_s": [mine] * STEPS,
                    "exposed_s": [exposed] * STEPS,
                    "copy_s": [0.0] * STEPS,
                    "idle_host_s": [idle_host_s] * STEPS,
                    "idle_data_s": [0.0] * STEPS,
                    "idle_queued_s": [0.0] * STEPS,
                },
                collective_s=[[duration]] * STEPS if len(compute_s) > 1 else [[]] * STEPS,
                collective_exposed_s=[[exposed]] * STEPS if len(compute_s) > 1 else [[]] * STEPS,
            )
        )
    result = make_result(arrivals_of(trial), [[last + transfer_s] * STEPS] * len(compute_s), launch=launch)
    records = [
        RankRecord(
            rank=rank,
            host="here",
            device="cpu",
            placement=f"[Rank {rank}]",
            samples=summary.samples(),
            counters=summary.counters(),
        )
        for rank, summary in enumerate(summaries)
    ]
    result.ranks[:] = records
    return result
