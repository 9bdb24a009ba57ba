"""Checks of several hosts: each by itself, and what they should have in common."""

import dataclasses
from typing import Any

from scalescope.analysis.checks.nodes import HostChecks, checks_between, checks_of_hosts
from scalescope.report.checks import host_sections
from tests.simulated.launcher import TWO_CORES


def look(
    systems: dict[str, dict[str, Any]], ranks: int = 2, **machines: dict[str, Any]
) -> tuple[HostChecks, ...]:
    """Probes of hosts; `machines` holds what is special about some."""
    nodes = {host: dataclasses.replace(TWO_CORES, host=host, **machines.get(host, {})) for host in systems}
    numbers = {host: tuple(range(n * ranks, (n + 1) * ranks)) for n, host in enumerate(systems)}
    return checks_of_hosts(nodes, systems, numbers)


def shown(hosts: tuple[HostChecks, ...]) -> tuple[str, list[str], tuple[str, ...]]:
    verdict, table = host_sections(hosts, checks_between(hosts))
    assert table.table is not None
    return verdict.lines[0], [" ".join(row) for row in table.table.rows], table.lines


def test_equal_hosts_have_a_row_each_and_no_warnings() -> None:
    verdict, rows, lines = shown(look({"n1": {}, "n2": {}}))
    assert verdict == "All 2 hosts are ready and alike."
    assert rows == ["n1 0,1 none 2 16.0 GiB unknown 2.13.0 ok", "n2 2,3 none 2 16.0 GiB unknown 2.13.0 ok"]
    assert lines == ()
    _, rows, _ = shown(look({"n1": {}, "n2": {}}, ranks=4))
    assert [row.split()[1] for row in rows] == ["0-3", "4-7"]


def test_a_warning_of_one_host_names_it_and_one_of_all_hosts_is_shown_once() -> None:
    loaded = {"load_average": 9.0}
    _, rows, lines = shown(look({"n1": {"governor": "powersave"}, "n2": {"governor": "powersave", **loaded}}))
    assert [row.rpartition("2.13.0 ")[2] for row in rows] == ["1 warning", "2 warnings"]
    assert len(lines) == 2
    assert lines[0].startswith(
        "warn: all hosts: governor: CPU frequency governor powersave. Performance keeps"
    )
    assert lines[1] == (
        "warn: n2: load: load average 9.0 on 2 cores. Other work runs here: results will be noisy."
    )


def test_what_makes_a_run_meaningless_comes_first() -> None:
    blocking = {"variables": {"CUDA_LAUNCH_BLOCKING": "1"}}
    verdict, rows, lines = shown(look({"n1": {"load_average": 9.0}, "n2": blocking}))
    assert verdict.startswith("A run here would not be meaningful: CUDA_LAUNCH_BLOCKING")
    assert rows[1].endswith(" 1 fail")
    assert lines[0].startswith("fail: n2: CUDA_LAUNCH_BLOCKING")


def test_hosts_that_differ_are_named_by_what_they_have() -> None:
    hosts = look({"n1": {}, "n2": {}, "n3": {}}, n3={"cores": 8, "torch_version": "2.9.0"})
    texts = [check.text for check in checks_between(hosts)]
    assert texts == ["torch: 2.13.0 on n1, n2; 2.9.0 on n3", "cores: 2 on n1, n2; 8 on n3"]
    first = {"variables": {"NCCL_ALGO": "Ring", "CUDA_VISIBLE_DEVICES": "0"}}
    hosts = look({"n1": first, "n2": {"variables": {"CUDA_VISIBLE_DEVICES": "1"}}})
    (only,) = checks_between(hosts)
    assert only.text == "NCCL_ALGO: Ring on n1; unset on n2"
    assert "NCCL_ALGO" in only.advice


def test_a_loopback_host_name_is_a_warning_with_several_hosts() -> None:
    alone = {"own_address": "127.0.1.1"}
    _, _, lines = shown(look({"n1": {**alone, "variables": {"GLOO_SOCKET_IFNAME": "ib0"}}, "n2": alone}))
    doubts = [line for line in lines if "host name" in line]
    assert len(doubts) == 1 and doubts[0].startswith("warn: n2: ") and "127.0.1.1" in doubts[0]


def test_the_network_is_the_ports_that_are_up_or_the_fastest_card() -> None:
    port = {"name": "mlx5_0", "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"}
    cards = [
        {"name": "eth0", "state": "up", "speed_mbit": 1000},
        {"name": "eth1", "state": "up", "speed_mbit": 25000},
        {"name": "eth2", "state": "down", "speed_mbit": 100000},
    ]
    _, rows, _ = shown(look({"n1": {"infiniband": [port, port]}, "n2": {"interfaces": cards}}))
    assert "2 × 400 Gb/sec (4X NDR)" in rows[0]
    assert "eth1 25000 Mbit/s" in rows[1]
