"""NCCL's own model of its collectives (src/graph/tuning.cc): the fastest of its algorithms and protocols."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scalescope.hardware.published import NamedNetwork

# NCCL's figures choose among algorithms; a small all-reduce on eight H200 takes that much longer (published).
_LAUNCH_S = 24e-6
_BASE_S = (6.6e-6, 14e-6, 8.4e-6)  # LL, LL128, Simple: before the first hop
_RATE_SHARES = (0.5, 0.92, 1.0)  # of the link's rate


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """A number of GPUs and nodes, what connects them, and the network cards per node."""

    gpus: int
    nodes: int
    inside: NamedNetwork
    between: NamedNetwork
    cards: int = 1

    @property
    def per_node(self) -> int:
        return math.ceil(self.gpus / self.nodes)

    @property
    def leaving(self) -> float:
        """Bytes per second that leave a node in one direction."""
        return self.between.bytes_per_s * self.cards

    @property
    def narrowest(self) -> float:
        """Bytes per second along a ring or tree through all GPUs."""
        if self.nodes == 1:
            return self.inside.bytes_per_s
        crosses_nodes_only = self.per_node == 1 or self.inside is self.between
        return self.leaving if crosses_nodes_only else min(self.inside.bytes_per_s, self.leaving)


@dataclass(frozen=True, slots=True)
class CollectivePlan:
    """One way to do a collective: its hops inside and between nodes, and its time at the links' full rate."""

    algorithm: str
    hops_inside: float
    hops_between: float
    transfer_s: float


@dataclass(frozen=True, slots=True)
class ModelTime:
    """The time of the fastest way."""

    time_s: float
    latency_s: float
    algorithm: str


def model_time(collective: str, size_bytes: float, shape: ClusterShape) -> ModelTime:
    """The fastest plan with the fastest protocol."""
    return min(
        (
            _with_protocol(plan, protocol, shape)
            for plan in _PLANS[collective](size_bytes, shape)
            for protocol in range(len(_BASE_S))
        ),
        key=lambda time: time.time_s,
    )


def _with_protocol(plan: CollectivePlan, protocol: int, shape: ClusterShape) -> ModelTime:
    latency_s = (
        _LAUNCH_S
        + _BASE_S[protocol]
        + plan.hops_inside * shape.inside.hop_s[protocol]
        + plan.hops_between * shape.between.hop_s[protocol]
    )
    return ModelTime(latency_s + plan.transfer_s / _RATE_SHARES[protocol], latency_s, plan.algorithm)


def _all_reduce(size_bytes: float, shape: ClusterShape) -> Iterator[CollectivePlan]:
    """Every byte is sent twice: once to be reduced, once with the sum."""
    for plan in _share_all(size_bytes, shape):
        yield CollectivePlan(plan.algorithm, 2 * plan.hops_inside, 2 * plan.hops_between, 2 * plan.transfer_s)
    deep = 2 * math.log2(shape.nodes)
    yield CollectivePlan("tree", 2 * (shape.per_node - 1), deep, 2 * size_bytes / shape.narrowest)


def _share_all(size_bytes: float, shape: ClusterShape) -> Iterator[CollectivePlan]:
    """All-gather and reduce-scatter, where every rank has a part of the array."""
    gpus, nodes, per_node = shape.gpus, shape.nodes, shape.per_node
    crossings = nodes if nodes > 1 else 0
    yield CollectivePlan(
        "ring", max(0, gpus - 1 - crossings), crossings, (gpus - 1) / gpus * size_bytes / shape.narrowest
    )
    if nodes > 1:
        inside_s = (per_node - 1) / per_node * size_bytes / shape.inside.bytes_per_s
        between_s = (nodes - 1) / nodes * size_bytes / shape.leaving
        yield CollectivePlan("hierarchical", per_node - 1, nodes - 1, inside_s + between_s)


def _broadcast(size_bytes: float, shape: ClusterShape) -> Iterator[CollectivePlan]:
    crossings = shape.nodes - 1
    yield CollectivePlan("ring", shape.gpus - 1 - crossings, crossings, size_bytes / shape.narrowest)
    yield CollectivePlan("tree", shape.per_node - 1, math.log2(shape.nodes), size_bytes / shape.narrowest)


def _send_receive(size_bytes: float, shape: ClusterShape) -> Iterator[CollectivePlan]:
    if shape.nodes == 1:
        yield CollectivePlan("direct", 1, 0, size_bytes / shape.inside.bytes_per_s)
    else:
        yield CollectivePlan("direct", 0, 1, size_bytes / shape.between.bytes_per_s)


_PLANS: dict[str, Callable[[float, ClusterShape], Iterator[CollectivePlan]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _share_all,
    "reduce_scatter": _share_all,
    "broadcast": _broadcast,
    "sendrecv": _send_receive,
}
