"""What `check` shows: this host, and whether the nodes of a job are alike."""

from collections.abc import Sequence

from scalescope.analysis.checks.host import Check, gpus_text, nic_text, numa_text
from scalescope.analysis.checks.nodes import Errors, HostChecks, NodeFacts, RankSite, node_facts, rank_sites
from scalescope.experiment.machine import gpu_names
from scalescope.quantities import rank_numbers
from scalescope.report.numbers import MISSING, counted, data_size, percent
from scalescope.report.section import Section, Table
from scalescope.results.run import Run
from scalescope.results.topology import NicSite

# ---- The nodes of a run: what each is made of and what it did, a row each; with -v where every rank ran


_COLUMNS = (
    "node",
    "NUMA nodes",
    "network",
    "GPUs",
    "CPU busy",
    "GPU busy",
    "GPU slowdowns",
    "network errors",
)
_OPTIONAL = ("GPU busy", "GPU slowdowns", "network errors", "CPU busy")


def node_sections(run: Run, *, label: str = "") -> tuple[Section, ...]:
    """A table for runs on several nodes; of a single one the same in lines, on request."""
    nodes = [node for node in node_facts(run) if node.topology is not None]
    if not nodes:
        return ()
    ranks = tuple(_rank_line(site) for site in rank_sites(run))
    if len(nodes) == 1:
        pairs = zip(_COLUMNS, _row(nodes[0]), strict=True)
        return (
            Section(
                title="Node",
                details=(*(f"{name}: {cell}" for name, cell in pairs if cell != MISSING), *ranks),
            ),
        )
    table = Table(
        columns=_COLUMNS,
        rows=tuple(_row(node) for node in nodes),
        left=frozenset(_COLUMNS),
        optional=_OPTIONAL,
    )
    return (Section(title=f"Nodes{f' of {label}' if label else ''}", table=table, details=ranks),)


def _row(node: NodeFacts) -> tuple[str, ...]:
    assert node.topology is not None
    summary = node.telemetry
    busy = None if summary is None else summary.host_utilization
    gpu_busy = None if summary is None else summary.gpu_utilization
    return (
        node.host,
        numa_text(node.topology),
        _network(node),
        gpus_text(node.topology),
        MISSING if busy is None else percent(busy),
        MISSING if gpu_busy is None else percent(gpu_busy),
        _slowdowns(node),
        _errors(node.errors),
    )


def _network(node: NodeFacts) -> str:
    """`8 × infiniband 400 Gbit/s (mlx5_0, …)`, or what the system calls its interfaces."""
    assert node.topology is not None
    kinds: dict[str, list[NicSite]] = {}
    for nic in node.topology.nics:
        kinds.setdefault(nic_text(nic), []).append(nic)
    shown = [f"{len(nics)} × {kind} ({', '.join(nic.name for nic in nics)})" for kind, nics in kinds.items()]
    return (
        "; ".join(shown)
        or ", ".join(str(interface.get("name")) for interface in node.interfaces)
        or "unknown"
    )


def _slowdowns(node: NodeFacts) -> str:
    """What slowed GPUs down; a power cap is information."""
    slowed = () if node.telemetry is None else node.telemetry.slowed_gpus
    names = dict.fromkeys(name for gpu in slowed for name in gpu.reasons)
    shown = [f"{name} ({counted(sum(name in gpu.reasons for gpu in slowed), 'GPU')})" for name in names]
    return ", ".join(shown) or MISSING


def _errors(errors: Errors | None) -> str:
    if errors is None:
        return MISSING
    grown = {port: sum(counters.values()) for port, counters in errors.items() if counters}
    return ", ".join(f"{port}: {count}" for port, count in grown.items()) or "none"


def _rank_line(site: RankSite) -> str:
    """`Rank 3 on n2: cores 32-63 on NUMA node 1, GPU 3 on NUMA node 0 (distance 21), mlx5_3 over PIX`."""
    parts = [f"cores {site.core_text} on NUMA node {' and '.join(map(str, site.numa_nodes)) or 'unknown'}"]
    if site.gpu is not None:
        parts.append(f"GPU {site.gpu.index}{_where(site.gpu.numa_node, site.gpu_distance)}")
    if site.nic is not None:
        path = "" if site.nic_path is None else f" over {site.nic_path}"
        parts.append(f"{site.nic.name}{path}{_where(site.nic.numa_node, site.nic_distance)}")
    return f"Rank {site.rank} on {site.host}: {', '.join(parts)}"


def _where(numa_node: int | None, distance: int | None) -> str:
    far = "" if distance is None else f" (distance {distance})"
    return far if numa_node is None else f" on NUMA node {numa_node}{far}"


# ---- The screen of `check`: of one host line by line, of several a row each


def check_sections(checks: tuple[Check, ...], matrix: list[str]) -> tuple[Section, ...]:
    """A sentence first, then one line for each check, then the link matrix."""
    rows = tuple((check.level, check.subject, check.text) for check in checks)
    advice = tuple(f"{check.level}: {check.subject}: {check.advice}." for check in checks if check.advice)
    columns = ("level", "check", "result")
    return (
        Section(lines=(_verdict(checks, "This machine is ready."),)),
        Section(table=Table(columns=columns, rows=rows, left=frozenset(columns)), lines=advice),
        Section(title="Links", lines=tuple(matrix)),
    )


def _verdict(checks: Sequence[Check], good: str) -> str:
    bad = [check for check in checks if check.level == "fail"]
    doubtful = [check for check in checks if check.level == "warn"]
    if bad:
        return f"A run here would not be meaningful: {bad[0].subject}: {bad[0].text}."
    return f"A run here is possible; see {counted(len(doubtful), 'warning')} below." if doubtful else good


def host_sections(hosts: Sequence[HostChecks], between: tuple[Check, ...]) -> tuple[Section, ...]:
    """A sentence, a row for each host, then each warning once with the hosts that raise it."""
    doubts = _by_doubt(hosts, between)
    columns = ("host", "ranks", "GPUs", "cores", "memory", "network", "torch", "state")
    table = Table(
        columns=columns,
        rows=tuple(_sections_row(host) for host in hosts),
        left=frozenset(columns) - {"cores", "memory"},
        optional=("network", "memory"),
    )
    lines = [
        f"{check.level}: {where}{check.subject}: {check.text}. {_sentence(check.advice)}"
        for check, where in doubts
    ]
    details = [
        f"{host.host}: {check.level}: {check.subject}: {check.text}"
        for host in hosts
        for check in host.checks
    ]
    good = f"All {len(hosts)} hosts are ready and alike."
    return (
        Section(lines=(_verdict([check for check, _ in doubts], good),)),
        Section(table=table, lines=tuple(line.rstrip() for line in lines), details=tuple(details)),
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _by_doubt(hosts: Sequence[HostChecks], between: tuple[Check, ...]) -> list[tuple[Check, str]]:
    """Every warning once, with the hosts that raise it; failures first."""
    raised: dict[Check, list[str]] = {}
    for host in hosts:
        for check in host.doubts:
            raised.setdefault(check, []).append(host.host)
    doubts = [(check, "") for check in between]
    doubts += [
        (check, "all hosts: " if len(names) == len(hosts) else f"{', '.join(dict.fromkeys(names))}: ")
        for check, names in raised.items()
    ]
    return sorted(doubts, key=lambda doubt: doubt[0].level != "fail")


def _sections_row(host_checks: HostChecks) -> tuple[str, ...]:
    memory = host_checks.machine.memory_bytes
    return (
        host_checks.host,
        rank_numbers(host_checks.ranks),
        gpu_names(host_checks.machine),
        str(host_checks.machine.cores),
        "unknown" if memory is None else data_size(memory),
        _sections_network(host_checks),
        host_checks.machine.torch_version,
        _state(host_checks.doubts),
    )


def _sections_network(host_checks: HostChecks) -> str:
    """The InfiniBand ports that are up, or the fastest interface."""
    ports = [port for port in host_checks.system.get("infiniband", ()) if "ACTIVE" in (port["state"] or "")]
    if ports:
        return f"{len(ports)} × {ports[0]['rate'] or 'InfiniBand'}"
    up = [
        card
        for card in host_checks.system.get("interfaces", ())
        if card["state"] == "up" and card["speed_mbit"]
    ]
    if not up:
        return "unknown"
    best = max(up, key=lambda card: int(card["speed_mbit"]))
    return f"{best['name']} {best['speed_mbit']} Mbit/s"


def _state(doubts: tuple[Check, ...]) -> str:
    bad = sum(doubt.level == "fail" for doubt in doubts)
    if bad:
        return f"{bad} fail"
    return counted(len(doubts), "warning") if doubts else "ok"
