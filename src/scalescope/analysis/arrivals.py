"""Arrivals: what recorded launches tell about waiting, from the summaries of all ranks' traces.

A rank's exchange lasts from its own arrival to the end of the transfer, so the rank that arrives last has the
shortest. What another rank's exchange lasts longer is waiting. No clocks are compared between hosts.
"""

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from scalescope.analysis.statistics import exponential
from scalescope.results.result import Result
from scalescope.results.traces.summary import TraceSummary

IDLE_PARTS = ("idle_host_s", "idle_data_s", "idle_queued_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLaunch:
    """One recorded launch: seconds per step, the mean over steps and ranks; None is unknown."""

    step_s: float
    compute_s: float
    exposed_s: float  # communication that no compute hides, waiting included
    waiting_s: float | None  # of that, waiting for ranks that arrive later
    copy_s: float
    idle_s: Mapping[str, float]  # by cause
    rank_compute_s: tuple[float, ...]
    round: Hashable = None  # launches made next to each other; None where they are made one by one

    @property
    def transfer_s(self) -> float | None:
        """Exposed communication without waiting for other ranks."""
        return None if self.waiting_s is None else self.exposed_s - self.waiting_s


def recorded_launch(
    result: Result, round_: Hashable = None, round_effect: float = 0.0
) -> RecordedLaunch | None:
    """The summaries of all ranks read together, without what the round adds to the logarithm of the speed;
    None where a rank has none."""
    summaries = [TraceSummary.from_record(record.samples) for record in result.ranks]
    known = [summary for summary in summaries if summary is not None]
    if not known or len(known) < len(summaries):
        return None

    factor = exponential(round_effect)

    def mean(part: str) -> float:
        return factor * statistics.fmean(statistics.fmean(summary.parts[part]) for summary in known)

    waiting_s = _waiting_s(known)
    return RecordedLaunch(
        step_s=mean("step_s"),
        compute_s=mean("compute_s"),
        exposed_s=mean("exposed_s"),
        waiting_s=None if waiting_s is None else factor * waiting_s,
        copy_s=mean("copy_s"),
        idle_s={part: mean(part) for part in IDLE_PARTS},
        rank_compute_s=tuple(factor * statistics.fmean(summary.parts["compute_s"]) for summary in known),
        round=round_,
    )


def _waiting_s(summaries: Sequence[TraceSummary]) -> float | None:
    """Exposed waiting per step, the mean over ranks; None where exchanges do not correspond."""
    times = [summary.collective_s for summary in summaries]
    counts = {tuple(map(len, steps)) for steps in times if steps is not None}
    if any(steps is None for steps in times) or len(counts) != 1:
        return None
    waits = [_step_waits_s(summaries, step) for step in range(len(counts.pop()))]
    return statistics.fmean(waits) if waits else None


def _step_waits_s(summaries: Sequence[TraceSummary], step: int) -> float:
    """Exposed waiting in one step, the mean over ranks.

    Waiting comes first in an exchange, and so does what compute hides of it: only what compute does not hide
    of the waiting is lost.
    """
    total_s = 0.0
    durations = [summary.collective_s[step] for summary in summaries if summary.collective_s is not None]
    exposures = [summary.collective_exposed_s[step] for summary in summaries]
    shortest = [min(times_s) for times_s in zip(*durations, strict=True)]
    for shortest_s, exposed_s in zip(shortest, zip(*exposures, strict=True), strict=True):
        # waiting − hidden = (time − shortest) − (time − exposed)
        total_s += sum(max(0.0, rank_exposed_s - shortest_s) for rank_exposed_s in exposed_s)
    return total_s / len(summaries)
