"""Times of collectives on named hardware: from nominal rates by NCCL's model, or from a published curve."""

import dataclasses
import math
from dataclasses import dataclass

from scalescope.analysis.prediction.measured_times import along, curve_through
from scalescope.analysis.prediction.network import CollectiveTime
from scalescope.analysis.prediction.setup import RankLayout
from scalescope.errors import BadInput
from scalescope.hardware.nccl_model import ClusterShape, model_time
from scalescope.hardware.networks import NamedNetwork, networks

_LATENCY_ERROR = 1.0  # of NCCL's own: on two nodes of H100 it took up to twice as long (published)
_PUBLISHED_ERROR = 0.1
_GPUS_OF_A_NODE = 8  # nodes with more are rare, so that more are not taken for granted


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
