"""Checks of several hosts: each host by itself, and what differs between them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalescope.analysis.checks.host import Check, all_checks
from scalescope.experiment.machine import Machine
from scalescope.experiment.machines.nodes import NodeDifference, differences, unlike

# These name one rank's own GPUs or host: they differ where nothing is wrong.
_MAY_DIFFER = ("CUDA_VISIBLE_DEVICES", "NCCL_HOSTID")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostChecks:
    """One host: what it is, which ranks it has, and all that was looked at."""

    host: str
    machine: Machine
    system: Mapping[str, Any]
    ranks: tuple[int, ...]
    checks: tuple[Check, ...]

    @property
    def doubts(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.level != "ok")


def checks_of_hosts(
    nodes: Mapping[str, Machine],
    systems: Mapping[str, Mapping[str, Any]],
    ranks: Mapping[str, tuple[int, ...]],
) -> tuple[HostChecks, ...]:
    """Every host by itself, including what matters only with several hosts."""
    hosts = []
    for host, machine in nodes.items():
        system, host_ranks = systems[host], ranks[host]
        variables = system.get("variables", {})
        checks = (*all_checks(machine, system, variables, len(host_ranks)), *_name(system, variables))
        hosts.append(HostChecks(host=host, machine=machine, system=system, ranks=host_ranks, checks=checks))
    return tuple(hosts)


def checks_between(hosts: Sequence[HostChecks]) -> tuple[Check, ...]:
    """What differs between hosts that should be the same."""
    machines = {host.host: host.machine for host in hosts}
    unequal = [(difference, "all ranks wait for the slowest host") for difference in differences(machines)]
    unequal += [
        (difference, f"export the same {difference.name} on every host")
        for difference in _unequal_variables(hosts)
    ]
    return tuple(
        Check(level="warn", subject="hosts differ", text=difference.text, advice=advice)
        for difference, advice in unequal
    )


def _unequal_variables(hosts: Sequence[HostChecks]) -> list[NodeDifference]:
    names = dict.fromkeys(name for host in hosts for name in host.system.get("variables", {}))
    return unlike(
        {
            name: {host.host: host.system.get("variables", {}).get(name, "unset") for host in hosts}
            for name in names
            if name not in _MAY_DIFFER
        }
    )


def _name(system: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[Check]:
    """A host whose name resolves to a loopback address: gloo gives that address to the other hosts."""
    address = system.get("own_address") or ""
    if address.startswith("127.") and "GLOO_SOCKET_IFNAME" not in variables:
        yield Check(
            level="warn",
            subject="host name",
            text=f"resolves to {address}, which other hosts cannot reach",
            advice="export GLOO_SOCKET_IFNAME=INTERFACE, or fix /etc/hosts, if ranks use gloo",
        )
