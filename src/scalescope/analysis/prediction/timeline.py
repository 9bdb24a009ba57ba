"""Timeline: the simulated step as events on two lanes, and what it amounts to."""

from dataclasses import dataclass, field
from typing import Literal

Lane = Literal["compute", "communication"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """Something that takes time on one lane; `bucket` numbers what is exchanged."""

    lane: Lane
    name: str  # input, forward, backward, optimizer, all_reduce, all_gather, …
    begin_s: float
    end_s: float
    bucket: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What measurements of two or more ranks say beyond one rank's profile; the defaults are "not known"."""

    overlap_slowdown: float | None = None  # seconds of compute lost per second of overlapping communication
    shared_latency: float | None = None  # of latencies: the part that exchanges side by side do not overlap
    compute_s_per_byte: float | None = None  # compute lost per byte that is exchanged meanwhile
    busy_s_per_byte: float | None = None  # what an exchange takes longer while ranks compute, per byte
    busy_latency: float | None = None  # the same as a share of the exchange's latency
    fp16_s_per_byte: float | None = None  # work of the hook fp16, per byte that is sent
    bf16_s_per_byte: float | None = None
    hook_s: float | None = None  # that a hook adds to each exchange, and takes from compute meanwhile
    contention: dict[int, float] = field(default_factory=dict)  # compute on N ranks ÷ compute on one, by N
    from_launches: int = 0

    def conversion_s_per_byte(self, comm_hook: str) -> float:
        """What a hook adds to an exchange: conversions, and sums that take longer in 16 bits."""
        known = {"fp16": self.fp16_s_per_byte, "bf16": self.bf16_s_per_byte}
        return known.get(comm_hook) or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """One simulated step of a typical rank, and of the slowest of all."""

    events: tuple[TimelineEvent, ...]
    step_s: float
    exposed_s: float  # communication that no compute hides
    bubble_s: float = 0.0  # stages of a pipeline that wait for work, transfers not counted
    straggling_s: float = 0.0  # the slowest of all ranks beyond a typical one
    host_s: float = 0.0  # the whole step where the host needs longer to issue it than GPUs to do it
    network_error: float = 0.0  # relative standard deviation of the step that comes from the network's times
    assumptions: tuple[str, ...] = ()
