"""Times of collectives from measured curves: interpolated where measured, carried over elsewhere."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from scalescope.analysis.collectives import collective_rows
from scalescope.analysis.comm.curve import Curve, leave_one_out_errors
from scalescope.analysis.prediction.network import CollectiveTime
from scalescope.analysis.prediction.setup import RankLayout
from scalescope.errors import BadInput
from scalescope.results.result import Result

_DERIVED_ERROR = 0.1  # of a collective that was not measured, beyond that of the curve it is taken from
# What a ring's step takes longer for each rank that shares its core: gloo's small exchanges on two cores took
# 3.6 and 9.6 times as long on 4 and 8 ranks as on 2 (Xeon; Neoverse: 10 times on 8), and a ring has 3 and 7
# times as many steps.
_LATENCY_OF_CROWDING = 0.15


class MeasuredTimes:
    """Curves by collective and number of ranks, with the relative error of their points."""

    def __init__(
        self,
        curves: Mapping[tuple[str, int], Curve],
        error: float = 0.0,
        backend: str | None = None,
        *,
        through_cores: bool = False,
    ) -> None:
        self._curves = {key: curve for key, curve in curves.items() if curve.points and key[1] > 1}
        self._error = error
        self._backend = backend
        self._through_cores = through_cores  # data moves as fast as cores copy it, and no link is slower

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """The numbers of ranks that were measured."""
        return tuple(sorted({ranks for _, ranks in self._curves}))

    def up_to(self, ranks: int) -> "MeasuredTimes | None":
        """As if nothing had been measured on more ranks; None where nothing is left."""
        curves = {key: curve for key, curve in self._curves.items() if key[1] <= ranks}
        if not curves:
            return None
        return MeasuredTimes(curves, self._error, self._backend, through_cores=self._through_cores)

    def time_of(self, collective: str, size_bytes: float, ranks: int, layout: RankLayout) -> CollectiveTime:
        """The time on as many ranks; a ring's latency and volume carry a curve over to other numbers."""
        if ranks == 1 or size_bytes <= 0:
            return CollectiveTime(time_s=0.0)
        if not any(name == collective for name, _ in self._curves):
            return self._derived(collective, size_bytes, ranks, layout)
        measured_on = self._nearest(collective, ranks)
        time = self._on_measured(collective, size_bytes, measured_on)
        if measured_on != ranks:
            crowding = layout.crowding(ranks) / layout.crowding(measured_on)
            time = self._crowded(_carried(time, collective, measured_on, ranks, self._backend), crowding)
        if layout.nodes(ranks) > 1:
            time = _assuming(time, "all links are as fast as those that were measured")
        return time

    def _on_measured(self, collective: str, size_bytes: float, ranks: int) -> CollectiveTime:
        curve = self._curves[collective, ranks]
        time_s, assumptions = along(curve, size_bytes)
        latency_s = min(curve.points[0][1], time_s)
        return CollectiveTime(time_s=time_s, latency_s=latency_s, error=self._error, assumptions=assumptions)

    def _crowded(self, time: CollectiveTime, crowding: float) -> CollectiveTime:
        """The time where so many times as many ranks share a core as were measured."""
        if crowding == 1.0:
            return time
        latency_s = time.latency_s * (1.0 + _LATENCY_OF_CROWDING * (crowding - 1.0))
        transfer_s = (time.time_s - time.latency_s) * (crowding if self._through_cores else 1.0)
        time = dataclasses.replace(time, time_s=latency_s + transfer_s, latency_s=latency_s)
        return _assuming(time, f"exchanges take longer as {crowding:.2g} times as many ranks share a core")

    def _nearest(self, collective: str, ranks: int) -> int:
        counts = sorted(count for name, count in self._curves if name == collective)
        at_most = [count for count in counts if count <= ranks]
        return at_most[-1] if at_most else counts[0]

    def _derived(self, collective: str, size_bytes: float, ranks: int, layout: RankLayout) -> CollectiveTime:
        """From an all-reduce of the same size: it moves every byte twice, and a ring is as long for all."""
        share = _share_of_all_reduce(collective, ranks, self._backend)
        if share is None or not any(name == "all_reduce" for name, _ in self._curves):
            raise BadInput(f"no times of {collective} were measured; scalescope comm measures them")
        time = self.time_of("all_reduce", size_bytes, ranks, layout)
        time = dataclasses.replace(
            time,
            time_s=time.time_s * share,
            latency_s=time.latency_s * share,
            error=math.hypot(time.error, _DERIVED_ERROR),
        )
        return _assuming(time, f"{collective} takes {share:.2g} of the time of an all_reduce of its size")


def measured_times(results: Iterable[Result], link: str | None = None) -> MeasuredTimes | None:
    """Times from the launches of collectives over that link; None where there are none."""
    points: dict[tuple[str, int], list[tuple[int, float]]] = {}
    backends = set()
    for row in collective_rows(results):
        if row.link == link and row.among == "all":
            points.setdefault((row.collective, row.ranks), []).append((row.size_bytes, row.time_s))
            backends.add(row.backend)
    if not points:
        return None
    curves = {key: Curve.through(measured) for key, measured in points.items()}
    errors = [error for curve in curves.values() for error in leave_one_out_errors(curve.points)]
    backend = backends.pop() if len(backends) == 1 else None
    error = statistics.median(errors) if errors else 0.0
    return MeasuredTimes(curves, error, backend, through_cores=backend == "gloo" and link is None)


def curve_through(points: Sequence[tuple[int, float]]) -> Curve:
    """A curve of (bytes, seconds)."""
    return Curve.through(points)


def along(curve: Curve, size_bytes: float) -> tuple[float, tuple[str, ...]]:
    """The time of a size; beyond the curve it goes on as its last two points do."""
    first, last = curve.points[0], curve.points[-1]
    if size_bytes < first[0]:
        return first[1], ()  # latency alone
    if size_bytes <= last[0]:
        return curve.time_s(size_bytes), ()
    before = curve.points[-2] if len(curve.points) > 1 else (0, 0.0)
    rate = (last[1] - before[1]) / (last[0] - before[0])
    time_s = last[1] + max(rate, 0.0) * (size_bytes - last[0])
    return time_s, (f"messages beyond {last[0] >> 20} MiB take as long per byte as up to there",)


def _share_of_all_reduce(collective: str, ranks: int, backend: str | None) -> float | None:
    """The time of a collective ÷ that of an all-reduce of the same size on the same ranks."""
    if collective in ("broadcast", "sendrecv"):  # every byte crosses a link once
        return ranks / (2 * (ranks - 1))
    if collective == "reduce_scatter" and backend == "gloo":
        return 1.0  # it is an all-reduce of which each rank keeps a part
    return 0.5 if collective in ("all_gather", "reduce_scatter") else None


def _carried(
    time: CollectiveTime, collective: str, measured_on: int, ranks: int, backend: str | None
) -> CollectiveTime:
    """The same on another number of ranks; NCCL may choose a tree where a ring has many steps."""
    if collective == "sendrecv":
        return time
    ring = (ranks - 1) / (measured_on - 1)
    volume = 1.0 if collective == "broadcast" else ((ranks - 1) / ranks) / ((measured_on - 1) / measured_on)
    steps, shape = [(ring, volume)], "a ring"
    if backend == "nccl" and collective in ("all_reduce", "broadcast"):
        whole = 1.0 if collective == "broadcast" else measured_on / (measured_on - 1)
        steps.append((math.log2(ranks) / math.log2(measured_on), whole))
        shape = "a ring or a tree"
    transfer_s = time.time_s - time.latency_s
    time_s, latency_s = min(
        (time.latency_s * hops + transfer_s * bytes_moved, time.latency_s * hops)
        for hops, bytes_moved in steps
    )
    time = dataclasses.replace(time, time_s=time_s, latency_s=latency_s)
    return _assuming(time, f"{collective} follows {shape} from {measured_on} ranks on")


def _assuming(time: CollectiveTime, assumption: str) -> CollectiveTime:
    return dataclasses.replace(time, assumptions=(*time.assumptions, assumption))
