"""What a network should deliver, by an emulated link, a published curve or the links that were found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalescope.analysis.collectives import CollectiveRow
from scalescope.analysis.comm.curve import Curve
from scalescope.catalog.link import rates_of
from scalescope.experiment.trial import Trial
from scalescope.hardware.published import (
    PublishedCurve,
    curve_for,
    network_share,
    nvlink_rate,
    pcie_lane_rate,
    typical_busbw,
)
from scalescope.results.result import RankRecord
from scalescope.results.topology import GpuSite, NicSite, Topology, plain_uuid, topologies_of

# ---- Ends of links: which GPU of which host each rank has, and what connects two of them


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


# ---- Expected bus bandwidth: what the links that were found should carry, and which source says so


_FAR_BELOW_A_CURVE = 3.0
# At 4 to 16 MiB, where buckets are, published curves lie two to ten times below what they end with.
_FAR_BELOW_A_LINK = 6.0
# TCP on one core fills 10 Gbit/s; what gloo reaches on faster networks depends on the processor.
_MOST_BY_GLOO = 1.25e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A bus bandwidth in bytes per second that should be reached, over which path, by which source."""

    bytes_per_s: float
    path: str
    source: str
    slow_factor: float = _FAR_BELOW_A_LINK  # below that share of it, something is wrong

    def is_far_above(self, bytes_per_s: float) -> bool:
        return bytes_per_s * self.slow_factor < self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownRate:
    """Nothing says what these ranks should reach, because something is not known."""

    missing: str
    is_loopback: bool = False  # inside one host over gloo, for which nobody publishes figures


Expectable = Expected | UnknownRate
LOOPBACK = UnknownRate(missing="the bandwidth of gloo inside this host", is_loopback=True)


def expected_busbw(trial: Trial, ends: Sequence[LinkEnd], sizes: Sequence[int] = ()) -> Expectable:
    """What the ranks of a trial should reach: by the emulated link, a published curve, or their links.

    A published curve knows what messages of these sizes reach; links are known for large ones only.
    """
    if trial.link is not None:
        slowest = min(rates_of(trial.link, trial.world_size)) / 8
        return Expected(bytes_per_s=slowest, path=f"the link of {trial.link}", source="the emulated link")
    hosts = list(dict.fromkeys(end.host for end in ends))
    if len(ends) < trial.world_size:  # imported: one record stands for all ranks
        return UnknownRate(missing="where the ranks ran")
    if not trial.on_gpu:
        return LOOPBACK if len(hosts) == 1 else _slowest([_by_gloo(ends, host) for host in hosts])
    if trial.split_gpu or trial.oversubscribe:
        return UnknownRate(missing="the bandwidth between ranks on one GPU")
    names = {end.gpu_name for end in ends}
    published = curve_for(names.pop(), len(ends), len(hosts)) if len(names) == 1 else None
    if published is not None:
        return _on_curve(published, sizes)
    by_host = [[end for end in ends if end.host == host] for host in hosts]
    parts = [_inside(members) for members in by_host if len(members) > 1]
    return _slowest([*parts, *([_between(members) for members in by_host] if len(hosts) > 1 else ())])


def _slowest(parts: Sequence[Expectable]) -> Expectable:
    """The slowest of all parts; each must be known."""
    unknown = next((part for part in parts if isinstance(part, UnknownRate)), None)
    known = [part for part in parts if isinstance(part, Expected)]
    return unknown or min(known, key=lambda part: part.bytes_per_s)


def _on_curve(published: PublishedCurve, sizes: Sequence[int]) -> Expected:
    """The bus bandwidth of messages of these sizes one after the other; of the largest, without sizes."""
    curve = Curve.through([(size, time_s) for size, time_s, _ in published.points])
    least, most = curve.points[0][0], curve.points[-1][0]
    inside = [min(max(size, least), most) for size in sizes] or [most]
    factor = 2.0 * (published.gpus - 1) / published.gpus
    return Expected(
        bytes_per_s=factor * sum(inside) / sum(map(curve.time_s, inside)),
        path=system_name(published),
        source=published.source,
        slow_factor=_FAR_BELOW_A_CURVE,
    )


def system_name(published: PublishedCurve) -> str:
    """8×H200 SXM, or 16×H100 SXM on 2 nodes."""
    where = f" on {published.nodes} nodes" if published.nodes > 1 else ""
    return f"{published.gpus}×{published.gpu}{where}"


def _inside(ends: Sequence[LinkEnd]) -> Expectable:
    """Several GPUs of one host: NVLink between all of them, or else their PCIe."""
    topology, gpus = ends[0].topology, [end.gpu for end in ends if end.gpu is not None]
    if topology is None or len(gpus) < len(ends):
        return UnknownRate(missing=f"the paths between the GPUs of {ends[0].host}")
    links = {gpu.index: _nvlinks_to(gpu, gpus, topology) for gpu in gpus}
    if all(None not in counts for counts in links.values()):
        return _slowest([_by_nvlink(gpu, [count or 0 for count in links[gpu.index]]) for gpu in gpus])
    if all(sum(count is not None for count in counts) > 1 for counts in links.values()):
        # A mesh of a few links: a ring may use NVLink only, or not.
        return UnknownRate(missing="the rings that NCCL builds, because NVLink connects some pairs only")
    paths = {topology.path_between(low.index, high.index) for low in gpus for high in gpus if low is not high}
    if None in paths:
        return UnknownRate(missing=f"the paths between the GPUs of {ends[0].host}")
    if "SYS" in paths:
        return UnknownRate(missing=f"the bandwidth between the sockets of {ends[0].host}")
    return _slowest([_by_pcie(gpu) for gpu in gpus])


def _nvlinks_to(gpu: GpuSite, gpus: Sequence[GpuSite], topology: Topology) -> list[int | None]:
    """How many NVLinks go to each of the other GPUs; None where there are none."""
    return [nvlinks_of(topology.path_between(gpu.index, other.index)) for other in gpus if other is not gpu]


def nvlinks_of(path: str | None) -> int | None:
    """The 18 of NV18; None for other paths."""
    return int(path[2:]) if path and path.startswith("NV") and path[2:].isdecimal() else None


def _by_nvlink(gpu: GpuSite, links: Sequence[int]) -> Expectable:
    """Through a switch every other GPU is at the end of all links; without it each has links of its own."""
    if gpu.nvlink_version is None:
        return UnknownRate(missing=f"the NVLink version of GPU {gpu.index}")
    rate = nvlink_rate(gpu.nvlink_version, gpu.name)
    if rate is None:
        return UnknownRate(missing=f"the rate of NVLink {gpu.nvlink_version}")
    count = min(sum(links), gpu.nvlink_count or max(links))
    return Expected(
        bytes_per_s=count * rate.reached,
        path=f"{count} NVLink {gpu.nvlink_version} {'link' if count == 1 else 'links'} per GPU",
        source=rate.source,
    )


def _by_pcie(gpu: GpuSite) -> Expectable:
    rate = None if gpu.pcie_generation is None else pcie_lane_rate(gpu.pcie_generation)
    if rate is None or gpu.pcie_width is None:
        return UnknownRate(missing=f"the PCIe generation and width of GPU {gpu.index}")
    return Expected(
        bytes_per_s=gpu.pcie_width * rate.reached,
        path=f"PCIe {gpu.pcie_generation} ×{gpu.pcie_width}",
        source=rate.source,
    )


def _between(ends: Sequence[LinkEnd]) -> Expectable:
    """A host's way to others: all its cards, but no more than the PCIe of the GPUs that use them."""
    host, topology = ends[0].host, ends[0].topology
    cards = _cards(topology)
    if not cards:
        return UnknownRate(missing=f"the rate of the network cards of {host}")
    share, source = network_share()
    network = Expected(bytes_per_s=share * sum(map(_rate, cards)), path=_cards_text(cards), source=source)
    buses = [_by_pcie(end.gpu) for end in ends if end.gpu is not None]
    known = [bus for bus in buses if isinstance(bus, Expected)]
    if len(known) < len(ends):
        return UnknownRate(missing=f"the PCIe generation and width of the GPUs of {host}")
    total = sum(bus.bytes_per_s for bus in known)
    if total >= network.bytes_per_s:
        return network
    return Expected(bytes_per_s=total, path=f"{known[0].path} of {len(known)} GPUs", source=known[0].source)


def _by_gloo(ends: Sequence[LinkEnd], host: str) -> Expectable:
    """A host's only network card, where it is slow enough for TCP to fill it."""
    cards = _cards(next(end.topology for end in ends if end.host == host))
    if len(cards) != 1:
        return UnknownRate(missing=f"which network card of {host} gloo uses, and its rate")
    if _rate(cards[0]) > _MOST_BY_GLOO:
        return UnknownRate(missing="the bandwidth of gloo on a network of more than 10 Gbit/s")
    share, source = network_share()
    return Expected(bytes_per_s=share * _rate(cards[0]), path=_cards_text(cards), source=source)


def _cards(topology: Topology | None) -> list[NicSite]:
    """The cards that carry something: InfiniBand where there is any, as NCCL chooses."""
    cards = [] if topology is None else [card for card in topology.nics if card.rate_bytes_per_s]
    return [card for card in cards if card.kind == "infiniband"] or cards


def _rate(card: NicSite) -> float:
    return card.rate_bytes_per_s or 0.0


def _cards_text(cards: Sequence[NicSite]) -> str:
    total = sum(map(_rate, cards)) * 8 / 1e9
    return f"a network of {total:g} Gbit/s per host ({len(cards)} {'card' if len(cards) == 1 else 'cards'})"


# ---- Expectation: what the hardware should deliver, to tell whether a measurement is good or bad


_LARGE_BYTES = 1 << 24  # from here on a link's rate says what a message should reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A measured bus bandwidth as a share of what was to be expected, and where that comes from."""

    share: float
    of_what: str
    source: str


def expectation_of(
    row: CollectiveRow, gpu_name: str | None, link: str | None, by_links: Expectable | None = None
) -> Expectation | None:
    """Hold a row against the shaped link, a published curve of as many GPUs on as many nodes, what is usual
    for large messages, or what the links that were found carry; None where none of these is known."""
    if not row.size_bytes:
        return None
    if link is not None:
        slowest = min(rates_of(link, row.ranks)) / 8
        return Expectation(
            share=row.busbw_bytes_per_s / slowest, of_what=f"the link of {link}", source="the emulated link"
        )
    nodes = len(set(row.hosts)) or 1
    published = curve_for(gpu_name, row.ranks, nodes) if row.collective == "all_reduce" else None
    if published is not None:
        return _against_curve(row, published)
    typical = _against_typical(row, gpu_name) if gpu_name is not None and nodes == 1 else None
    return typical or _against_links(row, by_links)


def _against_curve(row: CollectiveRow, published: PublishedCurve) -> Expectation | None:
    curve = Curve.through([(size, time_s) for size, time_s, _ in published.points])
    if not curve.points[0][0] <= row.size_bytes <= curve.points[-1][0]:
        return None
    return Expectation(
        share=curve.time_s(row.size_bytes) / row.time_s,
        of_what=system_name(published),
        source=published.source,
    )


def _against_typical(row: CollectiveRow, gpu_name: str) -> Expectation | None:
    typical = typical_busbw(gpu_name, row.ranks, row.collective, row.size_bytes)
    if typical is None:
        return None
    share = row.busbw_bytes_per_s / typical.busbw
    return Expectation(share=share, of_what=f"what is usual on {row.ranks}×{gpu_name}", source=typical.source)


def _against_links(row: CollectiveRow, by_links: Expectable | None) -> Expectation | None:
    if not isinstance(by_links, Expected) or row.size_bytes < _LARGE_BYTES:
        return None
    share = row.busbw_bytes_per_s / by_links.bytes_per_s
    return Expectation(share=share, of_what=f"what {by_links.path} should carry", source=by_links.source)
