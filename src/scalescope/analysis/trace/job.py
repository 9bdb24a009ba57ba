"""The traces of a job's ranks read together: the step, its breakdown, who waits for whom, process groups.

The n-th collective of a group is the same on all its ranks. It ends everywhere at the same moment, so the
rank that arrives last has the shortest time: that is the transfer, and what others take longer is waiting.
Only durations are compared, never clocks.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from scalescope.results.traces.collectives import (
    SYMMETRIC,
    UNKNOWN_GROUP,
    Exchange,
    Group,
    bus_factor,
)
from scalescope.results.traces.job_trace import SUM_PARTS, RankTrace

Known = Literal["all", "bounds", "none"]
SAME, CHANGING = "same ranks", "changing"
_MOST_OF = 0.6  # of the waiting of others, which a late rank does not have
_LEAST_GAP = 0.2  # of the waiting of others, between the late ranks and the next one
_LEAST_WAITING = 0.02  # of a step: less is the jitter of every job
_CERTAIN = 3.0  # standard errors
_DIMENSIONS = {
    "dp": "data", "data": "data", "ddp": "data", "replicate": "replicate", "dp_replicate": "replicate",
    "dp_shard": "shard", "shard": "shard", "fsdp": "shard", "tp": "tensor", "tensor": "tensor",
    "model": "tensor", "pp": "pipeline", "pipe": "pipeline", "pipeline": "pipeline", "ep": "expert",
    "expert": "expert", "cp": "context", "context": "context", "sp": "context",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The same collective on the ranks of a group that were read."""

    kind: str
    group: str
    step: int
    times_s: Mapping[int, float]  # by rank
    exposed_s: Mapping[int, float]
    size_bytes: Mapping[int, float | None]
    splits: Mapping[int, tuple[int, ...] | None]
    is_complete: bool  # all ranks of the group were read

    @property
    def transfer_s(self) -> float:
        """At most, where ranks are missing."""
        return min(self.times_s.values())

    @property
    def last(self) -> int:
        """The rank that came last."""
        return min(self.times_s, key=self.times_s.__getitem__)

    def waiting_s(self, rank: int) -> float:
        """Of what no compute hides; waiting comes first, and so does what is hidden."""
        return max(0.0, self.exposed_s[rank] - self.transfer_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One kind of collective of one group, per step; times are the mean over ranks."""

    kind: str
    per_step: float
    time_s: float
    exposed_s: float
    size_bytes: float | None  # of one
    transfer_s: float | None = None
    waiting_s: float | None = None
    algbw: float | None = None  # bytes/s
    busbw: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTraffic:
    """The exchanges of the groups of one dimension, or of one size where dimensions are not named."""

    name: str
    size: int | None
    ranks: tuple[int, ...] | None
    dimension: str | None
    count: int  # groups that were seen
    traffic: tuple[Traffic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Who waits for whom."""

    known: Known
    waiting_s: float | None = None  # exposed, per step, the mean over ranks
    by_rank: Mapping[int, float] = field(default_factory=dict)  # how long each waits
    late_s: Mapping[int, float] = field(default_factory=dict)  # how much longer the others wait than each
    by_step: tuple[float, ...] = ()  # the mean over ranks
    late_ranks: tuple[int, ...] = ()  # that all others wait for, in every step: one, or those of a slow node
    delay_s: float | None = None  # how much longer the others wait than these, or than the least waiting one
    late_share: float | None = None  # of the others' waiting, what these ranks do not have
    pattern: str | None = None


@dataclass(frozen=True, kw_only=True)
class JobTrace:
    """The ranks that were read."""

    ranks: tuple[RankTrace, ...]
    unread: Mapping[str, str] = field(default_factory=dict)  # files, and why

    @cached_property
    def numbered(self) -> dict[int, RankTrace]:
        """By rank; traces that do not say theirs are numbered in their order."""
        taken = {trace.rank for trace in self.ranks if trace.rank is not None}
        free = (number for number in range(len(self.ranks) + len(taken)) if number not in taken)
        found: dict[int, RankTrace] = {}
        for trace in self.ranks:
            number = trace.rank if trace.rank is not None and trace.rank not in found else next(free)
            found[number] = trace
        return dict(sorted(found.items()))

    @property
    def first(self) -> RankTrace:
        return next(iter(self.numbered.values()))

    @property
    def world_size(self) -> int | None:
        """As the traces say; else unknown."""
        known = [trace.world_size for trace in self.ranks if trace.world_size is not None]
        return max(known) if known else None

    @property
    def is_complete(self) -> bool:
        """Whether every rank of the job was read."""
        return self.world_size is not None and len(self.numbered) >= self.world_size

    @property
    def step_s(self) -> float:
        """The mean step: the mean over ranks, which all take as long."""
        return statistics.fmean(trace.mean("time_s") for trace in self.ranks)

    @property
    def step_times_s(self) -> list[float]:
        """Of every step, the mean over ranks."""
        count = min(len(trace.steps) for trace in self.ranks)
        return [
            statistics.fmean(trace.steps[step]["time_s"] for trace in self.ranks) for step in range(count)
        ]

    @cached_property
    def breakdown(self) -> dict[str, float]:
        """Parts that add up to the step, the mean over steps and ranks."""
        return {part: statistics.fmean(trace.mean(part) for trace in self.ranks) for part in SUM_PARTS}

    @cached_property
    def communication_s(self) -> float:
        return statistics.fmean(trace.mean("communication_s") for trace in self.ranks)

    @property
    def overlap(self) -> float | None:
        """The share of communication that compute hides."""
        hidden = statistics.fmean(trace.mean("overlap_s") for trace in self.ranks)
        return hidden / self.communication_s if self.communication_s else None

    @cached_property
    def groups(self) -> dict[tuple[int, str], Group]:
        """By rank and name: groups of one dimension have the same name on different ranks."""
        return {(rank, group.name): group for rank, trace in self.numbered.items() for group in trace.groups}

    def group_of(self, rank: int, name: str) -> Group:
        """The group of an exchange; without metadata it is taken for all ranks of the job."""
        return self.groups.get((rank, name)) or Group(name=name, size=self.world_size)

    @cached_property
    def meetings(self) -> list[Meeting]:
        """Collectives that at least two of the read ranks took part in, where counts correspond."""
        members: dict[tuple[object, ...], dict[int, list[Exchange]]] = defaultdict(dict)
        for rank, trace in self.numbered.items():
            by_key: dict[tuple[object, ...], list[Exchange]] = defaultdict(list)
            for exchange in trace.exchanges:
                if exchange.kind in SYMMETRIC:
                    by_key[self._key(rank, exchange)].append(exchange)
            for key, listed in by_key.items():
                members[key][rank] = listed
        return [meeting for key, of_rank in members.items() for meeting in self._matched(key, of_rank)]

    def _key(self, rank: int, exchange: Exchange) -> tuple[object, ...]:
        """What the ranks of one group have in common; kinds apart where groups are not named."""
        group = self.group_of(rank, exchange.group)
        names = self.numbered[rank].step_names
        step = names[exchange.step] if names else exchange.step
        if exchange.group == UNKNOWN_GROUP:
            return (step, exchange.kind)
        return (step, group.name, group.ranks)

    def _matched(
        self, key: tuple[object, ...], of_rank: Mapping[int, Sequence[Exchange]]
    ) -> Iterator[Meeting]:
        counts = {len(listed) for listed in of_rank.values()}
        if len(of_rank) < 2 or len(counts) != 1:
            return
        some = next(iter(of_rank))
        size = self.group_of(some, of_rank[some][0].group).size
        for number in range(counts.pop()):
            each = {rank: listed[number] for rank, listed in of_rank.items()}
            if len({exchange.kind for exchange in each.values()}) > 1:
                return
            first = each[some]
            yield Meeting(
                kind=first.kind,
                group=first.group,
                step=first.step,
                times_s={rank: exchange.time_s for rank, exchange in each.items()},
                exposed_s={rank: exchange.exposed_s for rank, exchange in each.items()},
                size_bytes={rank: exchange.size_bytes for rank, exchange in each.items()},
                splits={rank: exchange.splits for rank, exchange in each.items()},
                is_complete=size is not None and len(each) >= size,
            )

    @cached_property
    def waiting(self) -> Waiting:
        """Transfer and waiting apart, as far as the ranks that were read tell."""
        if len(self.numbered) < 2 or not self.meetings:
            return Waiting(known="none")
        by_step: dict[int, dict[int, float]] = defaultdict(lambda: dict.fromkeys(self.numbered, 0.0))
        for meeting in self.meetings:
            for rank in meeting.times_s:
                by_step[meeting.step][rank] += meeting.waiting_s(rank)
        steps = min(len(trace.steps) for trace in self.ranks)
        waits = {rank: math.fsum(step[rank] for step in by_step.values()) / steps for rank in self.numbered}
        waiting_s = statistics.fmean(waits.values())
        complete = all(meeting.is_complete for meeting in self.meetings)
        # A delay spreads: who waited for the late rank is late for others. But they waited, and it did not.
        late = {rank: max(0.0, _mean_of_others(waits, (rank,)) - wait_s) for rank, wait_s in waits.items()}
        together = _late_together(waits, [by_step[step] for step in range(steps)])
        last = together or (min(waits, key=waits.__getitem__),)
        others_s = _mean_of_others(waits, last)
        delay_s = others_s - statistics.fmean(waits[rank] for rank in last)
        pattern = None
        if others_s > 0.0 and waiting_s >= _LEAST_WAITING * self.step_s:
            pattern = SAME if together else CHANGING
        return Waiting(
            known="all" if complete and self._all_matched else "bounds",
            waiting_s=waiting_s,
            by_rank=waits,
            late_s=late,
            by_step=tuple(statistics.fmean(by_step[step].values()) for step in range(steps)),
            late_ranks=together if pattern == SAME else (),
            delay_s=delay_s,
            late_share=delay_s / others_s if others_s > 0.0 else None,
            pattern=pattern,
        )

    @property
    def _all_matched(self) -> bool:
        """Whether every exchange of all ranks found its partners."""
        matched = sum(len(meeting.times_s) for meeting in self.meetings)
        return matched == sum(e.kind in SYMMETRIC for trace in self.ranks for e in trace.exchanges)

    @cached_property
    def traffic(self) -> list[GroupTraffic]:
        """By dimension or size of the groups, the most exposed first."""
        listed: dict[tuple[object, ...], list[tuple[int, Exchange, Group]]] = defaultdict(list)
        for rank, trace in self.numbered.items():
            for exchange in trace.exchanges:
                group = self.group_of(rank, exchange.group)
                listed[(_dimension(group), group.size)].append((rank, exchange, group))
        rows = [self._group_traffic(members) for members in listed.values()]
        return sorted(rows, key=lambda row: -sum(kind.exposed_s for kind in row.traffic))

    def _group_traffic(self, members: Sequence[tuple[int, Exchange, Group]]) -> GroupTraffic:
        group = members[0][2]
        distinct = {(member.name, member.ranks) for _, _, member in members}
        kinds: dict[str, list[tuple[int, Exchange]]] = defaultdict(list)
        for rank, exchange, _ in members:
            kinds[exchange.kind].append((rank, exchange))
        traffic = [self._kind_traffic(kind, each, group) for kind, each in kinds.items()]
        return GroupTraffic(
            name=group.description or group.name or "all ranks",
            size=group.size,
            ranks=group.ranks if len(distinct) == 1 else None,
            dimension=_dimension(group),
            count=len(distinct),
            traffic=tuple(sorted(traffic, key=lambda row: -row.exposed_s)),
        )

    def _kind_traffic(self, kind: str, members: Sequence[tuple[int, Exchange]], group: Group) -> Traffic:
        ranks = {rank for rank, _ in members}
        steps = math.fsum(len(self.numbered[rank].steps) for rank in ranks)
        sizes = [exchange.size_bytes for _, exchange in members if exchange.size_bytes is not None]
        time_s = math.fsum(exchange.time_s for _, exchange in members) / steps
        meetings = [
            meeting
            for meeting in self.meetings
            if meeting.kind == kind and _alike(self.group_of(meeting.last, meeting.group), group)
        ]
        matched = math.fsum(len(meeting.times_s) for meeting in meetings)
        transfer_s = waiting_s = algbw = None
        if meetings and matched == len(members):
            shares = [(meeting.transfer_s, len(meeting.times_s)) for meeting in meetings]
            transfer_s = math.fsum(time * count for time, count in shares) / steps
            waiting_s = (
                math.fsum(meeting.waiting_s(rank) for meeting in meetings for rank in meeting.times_s) / steps
            )
        moving_s = transfer_s if transfer_s is not None else time_s
        if len(sizes) == len(members) and moving_s > 0.0:
            algbw = math.fsum(sizes) / steps / moving_s
        factor = bus_factor(kind, group.size) if group.size is not None else None
        return Traffic(
            kind=kind,
            per_step=len(members) / steps,
            time_s=time_s,
            exposed_s=math.fsum(exchange.exposed_s for _, exchange in members) / steps,
            size_bytes=statistics.fmean(sizes) if len(sizes) == len(members) else None,
            transfer_s=transfer_s,
            waiting_s=waiting_s,
            algbw=algbw,
            busbw=None if algbw is None or factor is None else algbw * factor,
        )


def _mean_of_others(waits: Mapping[int, float], ranks: Collection[int]) -> float:
    return statistics.fmean(wait_s for rank, wait_s in waits.items() if rank not in ranks)


def _late_together(waits: Mapping[int, float], by_step: Sequence[Mapping[int, float]]) -> tuple[int, ...]:
    """The ranks that wait little while the others wait for them, in every step: one, or those of a slow node;
    at most half of all. They end where the next rank waits the most longer."""
    order = sorted(waits, key=waits.__getitem__)
    gaps = [waits[order[count]] - waits[order[count - 1]] for count in range(1, len(order) // 2 + 1)]
    for count in sorted(range(1, len(gaps) + 1), key=lambda count: -gaps[count - 1]):
        late = frozenset(order[:count])
        others_s = _mean_of_others(waits, late)
        if gaps[count - 1] < _LEAST_GAP * others_s or others_s <= 0.0:
            return ()
        if waits[order[count - 1]] > (1.0 - _MOST_OF) * others_s:
            continue
        usual_s = [_mean_of_others(step, late) for step in by_step]
        delays = {
            rank: [usual - step[rank] for usual, step in zip(usual_s, by_step, strict=True)] for rank in late
        }
        if all(map(_is_steady, delays.values())):
            return tuple(sorted(late))
    return ()


def _is_steady(delays: Sequence[float]) -> bool:
    """Whether a rank is late in every step, by more than chance would make one of many ranks."""
    if len(delays) < 2:
        return True
    error_s = statistics.stdev(delays) / math.sqrt(len(delays))
    return min(delays) > 0.0 and statistics.fmean(delays) > _CERTAIN * error_s


def _alike(one: Group, other: Group) -> bool:
    """Whether groups have a row together: of one dimension and size."""
    return (_dimension(one), one.size) == (_dimension(other), other.size)


def _dimension(group: Group) -> str | None:
    """The dimension of a mesh that a group's name or description speaks of."""
    words = (group.description or group.name).lower().replace("-", "_")
    candidates = [words.removeprefix("mesh_"), *words.split("_")[::-1]]
    return next((_DIMENSIONS[word] for word in candidates if word in _DIMENSIONS), None)
