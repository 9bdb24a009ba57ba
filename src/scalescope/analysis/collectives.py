"""Collectives: one row for each size, with transfer and waiting time from the times of each rank."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from scalescope.analysis.culprit import last_to_arrive
from scalescope.analysis.modes import TwoModes, two_modes
from scalescope.catalog.benchmarks.comm import DTYPE_BYTES
from scalescope.catalog.collectives import collective_named
from scalescope.results.result import RankRecord, Result, undisturbed

Reach = Literal["inside a node", "between nodes", "several nodes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """One collective at one size, in or out of place, over all iterations and ranks of its launches."""

    collective: str
    dtype: str
    ranks: int
    in_place: bool
    size_bytes: int
    times_s: tuple[float, ...]  # every iteration, as long as its slowest rank took
    transfers_s: tuple[float, ...]  # every iteration, as long as its fastest rank took
    last_rank: int | None
    wrong: int
    trial_id: str = ""
    loop_s: float | None = None  # mean time of an iteration on the slowest rank
    backend: str | None = None
    link: str | None = None  # the rate the network was shaped to
    split_gpu: int | None = None
    hosts: tuple[str, ...] = ()  # one a rank
    among: str = "all"  # which of the ranks of several nodes took part

    @property
    def reach(self) -> Reach:
        """How far the exchange goes: inside one node, between nodes of a rank each, or both."""
        nodes = len(set(self.hosts))
        if nodes <= 1:
            return "inside a node"
        return "between nodes" if nodes == self.ranks else "several nodes"

    @property
    def where(self) -> str:
        """`, between nodes` and the like in a run of several nodes; nothing where there is one."""
        return "" if self.reach == "inside a node" and self.among == "all" else f", {self.reach}"

    @property
    def count(self) -> int:
        """Elements as nccl-tests counts them: those of a rank's part where the ranks share the array."""
        elements = self.size_bytes // DTYPE_BYTES[self.dtype]
        return elements // self.ranks if collective_named(self.collective).shares_array else elements

    @property
    def time_s(self) -> float:
        """What a loop of them takes on the slowest rank, divided by their number, as nccl-tests counts."""
        return statistics.fmean(self.times_s) if self.loop_s is None else self.loop_s

    @property
    def median_s(self) -> float:
        """Shown under -v only: where times have two modes, it jumps from one to the other."""
        return statistics.median(self.times_s)

    @property
    def modes(self) -> TwoModes | None:
        """The two groups that the iterations fall into, where they do."""
        return two_modes(self.times_s)

    def quantile_s(self, share: float) -> float:
        ordered = sorted(self.times_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def variation(self) -> float | None:
        """Standard deviation over mean; None for a single iteration."""
        if len(self.times_s) < 2:
            return None
        return statistics.stdev(self.times_s) / self.time_s

    @property
    def transfer_s(self) -> float | None:
        """The rank that comes last does not wait: the shortest time over ranks is the transfer.

        The mean over iterations, like all times. Unknown with a root, whose end, or whose senders', comes
        early by construction.
        """
        return None if self._is_rooted else statistics.fmean(self.transfers_s)

    @property
    def wait_s(self) -> float | None:
        """The rest of the time: waiting for the rank that comes last."""
        transfer = self.transfer_s
        return None if transfer is None else max(0.0, self.time_s - transfer)

    @property
    def _is_rooted(self) -> bool:
        return bool(collective_named(self.collective).root >= 0)

    @property
    def algbw_bytes_per_s(self) -> float:
        return self.size_bytes / self.time_s

    @property
    def busbw_bytes_per_s(self) -> float:
        """Algorithm bandwidth times nccl-tests' factor, comparable over collectives and rank counts."""
        factor = collective_named(self.collective).bus_factor(self.ranks)
        return self.algbw_bytes_per_s * float(factor)


def collective_rows(results: Iterable[Result]) -> tuple[CollectiveRow, ...]:
    """All rows of the communication results that are ok, launches of one trial taken together."""
    grouped: dict[tuple[str, str], list[Result]] = {}
    measured = [result for result in results if result.status == "ok" and result.trial.benchmark == "comm"]
    for result in undisturbed(measured):
        for key in result.ranks[0].samples:
            if not key.startswith("pair/"):
                grouped.setdefault((result.trial_id, key), []).append(result)
    return tuple(_row(key, members) for (_, key), members in grouped.items())


def _row(key: str, members: list[Result]) -> CollectiveRow:
    name, placement, size = key.split("/")
    trial = members[0].trial
    per_iteration = [
        iteration
        for member in members
        for iteration in zip(*(record.samples[key] for record in member.ranks), strict=True)
    ]
    return CollectiveRow(
        collective=name,
        dtype=trial.dtype,
        ranks=trial.world_size,
        in_place=placement == "in",
        size_bytes=int(size),
        times_s=tuple(max(times) for times in per_iteration),
        transfers_s=tuple(min(times) for times in per_iteration),
        last_rank=None if collective_named(name).root >= 0 else last_to_arrive(per_iteration),
        wrong=sum(_wrong(record, key) for member in members for record in member.ranks),
        trial_id=members[0].trial_id,
        loop_s=statistics.fmean(
            max(statistics.fmean(record.samples[key]) for record in member.ranks) for member in members
        ),
        backend=trial.backend if trial.has_setting("backend") else None,
        link=trial.link,
        split_gpu=trial.split_gpu,
        hosts=tuple(record.host for record in members[0].ranks),
        among=trial.ranks_among,
    )


def _wrong(record: RankRecord, key: str) -> int:
    count = record.counters.get(f"{key}/wrong")
    return count if isinstance(count, int) else 0
