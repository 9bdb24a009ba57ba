"""Profile: the traces of a trial's ranks read together, and held against DDP's own times."""

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalescope.analysis.launches import summarise
from scalescope.analysis.statistics import mean_of_known
from scalescope.experiment.explanations import timed_training_of
from scalescope.experiment.trial import Trial
from scalescope.results.result import RankRecord, Result
from scalescope.results.run import Run
from scalescope.results.stored.files import inside
from scalescope.results.traces.events import is_rooted, read_events
from scalescope.results.traces.rank_trace import IDLE_CAUSES, TracedRank, TracedStep, read_rank

_ROUNDING_S = 1e-7
_LONGEST_NAME = 200  # of a file, in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTiming:
    """The n-th exchange of a step, over all recorded steps and ranks."""

    number: int
    name: str
    size_bytes: int | None
    time_s: float
    exposed_s: float
    transfer_s: float | None  # of the rank that came last; None where one rank alone was recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceProfile:
    """The traces of one trial, read together."""

    trial: Trial
    files: dict[int, str]  # by rank
    ranks: dict[int, TracedRank]
    unread: dict[int, str]  # ranks whose trace could not be read, and why
    untraced_step_s: float | None  # from the timed launches beside it
    traced_step_s: float
    ddp_overlap: float | None  # by DDP's own counters
    bucket_bytes: tuple[int, ...] | None

    def mean(self, rank: int, part: Callable[[TracedStep], float]) -> float:
        """A part of a step of one rank, on average."""
        return statistics.fmean(part(step) for step in self.ranks[rank].steps)

    @property
    def steps(self) -> tuple[TracedStep, ...]:
        return tuple(step for rank in self.ranks.values() for step in rank.steps)

    @property
    def overlap(self) -> float | None:
        """The share of communication that compute hides; None without any communication."""
        communication_s = math.fsum(step.communication_s for step in self.steps)
        if communication_s == 0.0:
            return None
        return math.fsum(step.overlap_s for step in self.steps) / communication_s

    @property
    def span_overlap(self) -> float | None:
        """The same as DDP counts it: over the span of all transfers of a backward pass, pauses included."""
        return mean_of_known(step.span_overlap for step in self.steps)

    @property
    def disagreement(self) -> float | None:
        """How far the trace and DDP's own counters are apart, by DDP's definition."""
        if self.span_overlap is None or self.ddp_overlap is None:
            return None
        return abs(self.span_overlap - self.ddp_overlap)

    @property
    def buckets(self) -> tuple[BucketTiming, ...]:
        """The exchanges of a step in their order; empty where steps or ranks differ in their number."""
        counts = {len(step.collectives) for step in self.steps}
        if len(counts) != 1:
            return ()
        return tuple(self._bucket(number) for number in range(counts.pop()))

    def _bucket(self, number: int) -> BucketTiming:
        exchanges = [step.collectives[number] for step in self.steps]
        return BucketTiming(
            number=number + 1,
            name=exchanges[0].name,
            size_bytes=exchanges[0].size_bytes,
            time_s=statistics.fmean(exchange.time_s for exchange in exchanges),
            exposed_s=statistics.fmean(exchange.exposed_s for exchange in exchanges),
            transfer_s=self._transfer_s(number),
        )

    def _transfer_s(self, number: int) -> float | None:
        """What the exchange takes once all have come: the shortest of all ranks, step by step."""
        names = {step.collectives[number].name for step in self.steps}
        if len(self.ranks) < 2 or len(names) > 1 or is_rooted(names.pop()):
            return None  # a root leaves early, and a sender's time is not its receiver's
        together = zip(*(rank.steps for rank in self.ranks.values()), strict=False)
        return statistics.fmean(min(step.collectives[number].time_s for step in steps) for steps in together)

    @property
    def transfer_s(self) -> float | None:
        """Of a step's exchanges, without waiting for a peer; None where they cannot be added up."""
        known = [bucket.transfer_s for bucket in self.buckets if bucket.transfer_s is not None]
        if not known or not all(map(_takes_turns, self.steps)):
            return None
        return math.fsum(known)

    def waiting_s(self, rank: int) -> float | None:
        """What a rank's exchanges last longer than those of the one that came last."""
        transfer_s = self.transfer_s
        if transfer_s is None:
            return None
        exchange_times_s = [
            math.fsum(collective.time_s for collective in step.collectives) for step in self.ranks[rank].steps
        ]
        return statistics.fmean(exchange_times_s) - transfer_s

    @property
    def idle_s(self) -> dict[str, float]:
        """Idle time of a step by cause, over all ranks."""
        return {cause: statistics.fmean(step.idle_s[cause] for step in self.steps) for cause in IDLE_CAUSES}

    @property
    def kernels(self) -> tuple[tuple[str, float, int], ...]:
        """What the first recorded rank computed, the longest first."""
        return next(iter(self.ranks.values())).kernels


def _takes_turns(step: TracedStep) -> bool:
    """Whether no exchange of a step begins before the one before it has ended."""
    ends = [collective.start_s + collective.time_s for collective in step.collectives]
    begins = [collective.start_s for collective in step.collectives]
    return all(end <= begin + _ROUNDING_S for end, begin in zip(ends, begins[1:], strict=False))


def profiles(run: Run) -> tuple[TraceProfile, ...]:
    """The profiles of a run; traces that cannot be read are named, not left out in silence."""
    traced = (_profile(result, run) for result in run.of_status("ok") if _has_traces(result))
    return tuple(profile for profile in traced if profile is not None)


def _has_traces(result: Result) -> bool:
    return any("trace" in record.counters for record in result.ranks)


def _profile(result: Result, run: Run) -> TraceProfile:
    ranks: dict[int, TracedRank] = {}
    unread: dict[int, str] = {}
    files = {
        record.rank: str(record.counters["trace"]) for record in result.ranks if "trace" in record.counters
    }
    for rank, name in files.items():
        try:
            ranks[rank] = _read(inside(run.folder_of(result), name), on_gpu=result.trial.on_gpu)
        except FileNotFoundError:
            unread[rank] = f"{name} does not exist: it was written on another machine, or moved"
        except (OSError, ValueError) as error:
            unread[rank] = f"{name[:_LONGEST_NAME]} cannot be read: {error}"
        else:
            if not ranks[rank].steps:
                unread[rank] = f"{name} contains no complete step"
                del ranks[rank]
    trial = result.trial
    return TraceProfile(
        trial=trial,
        files=files,
        ranks=ranks,
        unread=unread,
        untraced_step_s=_untraced_step_s(trial, run),
        traced_step_s=statistics.fmean(
            time_s for record in result.ranks for time_s in record.samples["recorded_step_time_s"][1:]
        ),
        ddp_overlap=_ddp_overlap(result.ranks),
        bucket_bytes=_buckets(result.ranks),
    )


def _read(path: Path, *, on_gpu: bool) -> TracedRank:
    state = path.lstat()
    return _read_version(path, state.st_mtime_ns, state.st_size, on_gpu)


@functools.lru_cache(maxsize=256)
def _read_version(path: Path, changed: int, size: int, on_gpu: bool) -> TracedRank:
    """A trace is read once; a changed one again."""
    return read_rank(read_events(path), on_gpu=on_gpu)


def _untraced_step_s(trial: Trial, run: Run) -> float | None:
    """The typical step of the same trial without a profiler."""
    timed = timed_training_of(trial).trial_id
    launches = [summarise(result) for result in run.of_status("ok") if result.trial_id == timed]
    times = [launch.mean_step_s for launch in launches]
    return statistics.geometric_mean(times) if times else None


def _ddp_overlap(records: Sequence[RankRecord]) -> float | None:
    communication_s = math.fsum(
        t for record in records for t in record.samples.get("ddp_communication_s", ())
    )
    overlap_s = math.fsum(t for record in records for t in record.samples.get("ddp_overlap_s", ()))
    return overlap_s / communication_s if communication_s > 0.0 else None


def _buckets(records: Sequence[RankRecord]) -> tuple[int, ...] | None:
    sizes = (record.bucket_bytes for record in records)
    return next((known for known in sizes if known is not None), None)
