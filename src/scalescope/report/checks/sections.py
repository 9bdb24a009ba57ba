"""The screen of `check`: of one host line by line, of several a row each."""

from collections.abc import Sequence

from scalescope.analysis.checks.host import Check
from scalescope.analysis.checks.nodes import HostChecks
from scalescope.experiment.machines.nodes import gpu_names
from scalescope.report.numbers import counted, data_size
from scalescope.report.section import Section, Table


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
        rows=tuple(_row(host) for host in hosts),
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


def _row(host_checks: HostChecks) -> tuple[str, ...]:
    memory = host_checks.machine.memory_bytes
    return (
        host_checks.host,
        _numbers(host_checks.ranks),
        gpu_names(host_checks.machine),
        str(host_checks.machine.cores),
        "unknown" if memory is None else data_size(memory),
        _network(host_checks),
        host_checks.machine.torch_version,
        _state(host_checks.doubts),
    )


def _numbers(ranks: tuple[int, ...]) -> str:
    """`0-3` where they follow each other, otherwise one by one."""
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def _network(host_checks: HostChecks) -> str:
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
