"""Times of collectives on N ranks: from measured curves, or from what the hardware should deliver."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from scalescope.analysis.collectives import collective_rows
from scalescope.analysis.comm.curve import Curve, leave_one_out_errors
from scalescope.analysis.prediction.setup import RankLayout
from scalescope.errors import BadInput
from scalescope.hardware.nccl_model import ClusterShape, model_time
from scalescope.hardware.published import NamedNetwork, networks
from scalescope.results.result import Result

# ---- Network: how long a collective takes on how many ranks, with what that rests on


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """The time of one collective; `error` is its relative standard deviation.

    `assumptions` says in sentences what was not measured, such as another number of ranks or another size;
    empty where it was interpolated between measured points of the same number of ranks.
    """

    time_s: float
    latency_s: float = 0.0  # the part of it that does not occupy the link
    error: float = 0.0
    assumptions: tuple[str, ...] = ()


class CollectiveTimes(Protocol):
    """Where times of collectives come from: a measured curve, nccl-tests, a named hardware profile."""

    def time_of(
        self, collective: str, size_bytes: float, ranks: int, layout: RankLayout
    ) -> CollectiveTime: ...


# ---- Times of collectives from measured curves: interpolated where measured, carried over elsewhere


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
        """The time where this many times as many ranks share a core as were measured."""
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
        return _assuming(
            time, f"{collective} takes {share:.2g} of the time of an all_reduce of the same size"
        )


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
    return time_s, (f"times beyond {last[0] >> 20} MiB are extrapolated from the two largest messages",)


def _share_of_all_reduce(collective: str, ranks: int, backend: str | None) -> float | None:
    """The time of a collective ÷ that of an all-reduce of the same size on the same ranks."""
    if collective in ("broadcast", "sendrecv"):  # every byte crosses a link once
        return ranks / (2 * (ranks - 1))
    if collective == "reduce_scatter" and backend == "gloo":
        return 1.0  # it is an all-reduce; each rank keeps part of the result
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


# ---- Times of collectives on named hardware: from nominal rates by NCCL's model, or from a published curve


_LATENCY_ERROR = 1.0  # of NCCL's own: on two nodes of H100 it took up to twice as long (published)
_PUBLISHED_ERROR = 0.1
_GPUS_OF_A_NODE = 8  # nodes with more are rare


@dataclass(frozen=True, slots=True)
class HardwareTimes:
    """What connects GPUs of a node, and nodes; the one that is not given is taken to be as fast."""

    inside: NamedNetwork | None
    between: NamedNetwork | None

    def time_of(self, collective: str, size_bytes: float, ranks: int, layout: RankLayout) -> CollectiveTime:
        """By the published curve of such a system where there is one, otherwise by NCCL's model."""
        if ranks == 1 or size_bytes <= 0:
            return CollectiveTime(time_s=0.0)
        shape = self._shape(ranks, layout)
        time = self._published(collective, size_bytes, shape) or self._modelled(collective, size_bytes, shape)
        return dataclasses.replace(time, assumptions=(*time.assumptions, *self._missing(shape)))

    def _shape(self, ranks: int, layout: RankLayout) -> ClusterShape:
        inside, between = self.inside or self.between, self.between or self.inside
        assert inside is not None and between is not None
        return ClusterShape(ranks, layout.nodes(ranks), inside, between, layout.cards_per_node)

    def _missing(self, shape: ClusterShape) -> tuple[str, ...]:
        if self.between is None and shape.nodes > 1:
            return ("nodes are connected as fast as the GPUs of one node",)
        if self.inside is not None and shape.nodes == 1 and shape.gpus > _GPUS_OF_A_NODE:
            return (f"all {shape.gpus} GPUs are in one node",)
        if self.inside is not None or shape.per_node == 1:
            return ()
        if shape.nodes > 1:
            return ("GPUs of one node are connected at least as fast as nodes",)
        return ("every rank has a network card",)

    def _published(self, collective: str, size_bytes: float, shape: ClusterShape) -> CollectiveTime | None:
        network = self.inside if shape.nodes == 1 else self.between
        published = network.published_curve(shape.gpus, shape.nodes) if network else None
        if published is None or collective != "all_reduce":
            return None  # switches that add up speed all-reduces alone
        curve = curve_through([(size, time_s) for size, time_s, _ in published.points])
        time_s, beyond = along(curve, size_bytes)
        return CollectiveTime(
            time_s=time_s,
            latency_s=min(time_s, curve.points[0][1]),
            error=_PUBLISHED_ERROR,
            assumptions=(f"{collective} is as fast as published for {published.system}", *beyond),
        )

    def _modelled(self, collective: str, size_bytes: float, shape: ClusterShape) -> CollectiveTime:
        time = model_time(collective, size_bytes, shape)
        used = [shape.inside] if shape.nodes == 1 else [shape.inside, shape.between]
        transfer_error_s = max(network.rate_error for network in used) * (time.time_s - time.latency_s)
        names = ", ".join(dict.fromkeys(network.name for network in used))
        return CollectiveTime(
            time_s=time.time_s,
            latency_s=time.latency_s,
            error=math.hypot(transfer_error_s, _LATENCY_ERROR * time.latency_s) / time.time_s,
            assumptions=(f"{collective} reaches the rates that NCCL counts on ({names})",),
        )


def network_named(text: str) -> HardwareTimes:
    """`nvlink4` inside nodes, `400gbe` between them, or both as `nvlink4+400gbe`."""
    known = networks()
    levels: dict[str, NamedNetwork] = {}
    for name in text.lower().split("+"):
        network = known.get(name.strip())
        if network is None or network.level in levels:
            inside = ", ".join(item.name for item in known.values() if item.level == "inside")
            between = ", ".join(item.name for item in known.values() if item.level == "between")
            raise BadInput(
                f"{text} is not a known network; inside nodes: {inside}; between nodes: {between}; "
                "both are joined by a plus, such as nvlink4+400gbe"
            )
        levels[network.level] = network
    return HardwareTimes(levels.get("inside"), levels.get("between"))
