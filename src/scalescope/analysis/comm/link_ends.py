"""Ends of links: which GPU of which host each rank has, and what connects two of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalescope.results.result import RankRecord
from scalescope.results.topology import GpuSite, NicSite, Topology, plain_uuid, topologies_of

_SWITCH, _BRIDGE = ("PIX", "PXB"), ("PHB", "NODE")  # nvidia-smi: PCIe switches; the same NUMA node
_NEAREST_FIRST = (*_SWITCH, *_BRIDGE)
SAME_RAIL, OTHER_RAIL = "rail", "across rails"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEnd:
    """A rank's host and GPU; what was not recorded is None."""

    host: str
    gpu: GpuSite | None = None
    gpu_name: str | None = None  # as torch reports it
    topology: Topology | None = None

    @property
    def nearest_card(self) -> NicSite | None:
        """The network card next to the rank's GPU; None where none is nearer than the other socket."""
        if self.gpu is None or self.topology is None:
            return None
        paths = {
            card: self.topology.nic_paths.get(f"{self.gpu.index}-{card.name}") for card in self.topology.nics
        }
        near = [card for card, path in paths.items() if path in _NEAREST_FIRST]
        return min(near, key=lambda card: _NEAREST_FIRST.index(paths[card] or ""), default=None)


def link_ends(environment: Mapping[str, Any], records: Sequence[RankRecord]) -> tuple[LinkEnd, ...]:
    """The end of every rank of a launch, by what environment.json says of its hosts."""
    topologies, gpus = topologies_of(environment), _gpus(environment)
    ends = []
    for record in records:
        neighbours = [other for other in records if other.host == record.host]
        known = _recorded_gpu(record, neighbours, gpus.get(record.host, []))
        topology = topologies.get(record.host)
        site = _gpu_site(known, topology)
        ends.append(
            LinkEnd(
                host=record.host,
                gpu=site,
                gpu_name=known.get("name") or (None if site is None else site.name),
                topology=topology,
            )
        )
    return tuple(ends)


def path_class(low: LinkEnd, high: LinkEnd) -> str | None:
    """The class of path between two ranks, within which rates can be compared; None is unknown.

    NVLinks differ by their number; PCIe switches, one NUMA node and the way between sockets differ from
    each other. Between hosts it matters whether both cards have the same name, which is a rail.
    """
    if low.host != high.host:
        cards = low.nearest_card, high.nearest_card
        if cards[0] is None or cards[1] is None:
            return None
        return SAME_RAIL if cards[0].name == cards[1].name else OTHER_RAIL
    if low.gpu is None or high.gpu is None or low.topology is None:
        return None
    path = low.topology.path_between(low.gpu.index, high.gpu.index)
    return next((group[0] for group in (_SWITCH, _BRIDGE) if path in group), path)


def _gpus(environment: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {host: node.get("gpus") or [] for host, node in (environment.get("nodes") or {}).items()}


def _recorded_gpu(
    record: RankRecord, neighbours: Sequence[RankRecord], gpus: list[dict[str, Any]]
) -> dict[str, Any]:
    """A rank's GPU among those of its host, as the rank recorded it, or else by its number.

    Empty where it is not known. SLURM may show every rank only its own GPU, as number 0; they are then listed
    in the order of ranks.
    """
    if uuid := _uuid(record.counters):
        return next((gpu for gpu in gpus if plain_uuid(gpu.get("uuid")) == uuid), {"uuid": uuid})
    numbers = [_device_number(other) for other in neighbours]
    number = _device_number(record)
    if number is None:
        return {}
    if len(set(numbers)) < len(numbers) and len(gpus) == len(numbers):
        number = [other.rank for other in neighbours].index(record.rank)
    return gpus[number] if number < len(gpus) else {}


def _uuid(counters: Mapping[str, object]) -> str:
    """What the rank recorded of its GPU; empty where it recorded nothing."""
    return plain_uuid(str(counters.get("gpu_uuid") or ""))


def _device_number(record: RankRecord) -> int | None:
    """The 3 of cuda:3."""
    kind, _, number = record.device.partition(":")
    return int(number) if kind == "cuda" and number.isdecimal() else None


def _gpu_site(known: Mapping[str, Any], topology: Topology | None) -> GpuSite | None:
    """The GPU in the topology, by the identity that both sides recorded, and never by a number:
    CUDA_VISIBLE_DEVICES renumbers GPUs for torch."""
    if topology is None or not known:
        return None
    bus = known.get("pci_bus")
    by_bus = (site for site in topology.gpus if bus and site.pci_bus == bus)
    return topology.gpu(known.get("uuid")) or next(by_bus, None)
