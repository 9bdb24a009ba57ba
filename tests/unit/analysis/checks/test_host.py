"""Every rule of `check`: when it is content, when it warns, and when a run would be meaningless."""

import dataclasses
from typing import Any

import pytest

from scalescope.analysis.checks.host import Check, all_checks
from scalescope.experiment.machine import Gpu, Machine, PrecisionSupport
from scalescope.link_matrix import links_of
from tests.simulated.launcher import TWO_CORES
from tests.unit.analysis.checks.test_node_facts import TOPOLOGY

GPUS = tuple(Gpu(index=n, name="NVIDIA H200", memory_bytes=141 << 30, uuid=f"GPU-{n}") for n in range(2))
WITH_GPUS = dataclasses.replace(TWO_CORES, gpus=GPUS, backends=("gloo", "nccl"), cuda_version="13.0")
FACTS = {
    "index": "0",
    "name": "NVIDIA H200",
    "memory.total": "143771",
    "memory.used": "1",
    "driver_version": "580.65",
    "clocks.sm": "1980",
    "clocks.max.sm": "1980",
    "power.limit": "700.00",
    "clocks_event_reasons.active": "0x0000000000000000",
    "temperature.gpu": "31",
    "ecc.mode.current": "Enabled",
    "mig.mode.current": "Disabled",
    "pcie.link.gen.current": "5",
    "pcie.link.gen.max": "5",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
}
CALM: dict[str, Any] = {
    "gpus": [],
    "link_matrix": None,
    "gpu_processes": [],
    "interfaces": [],
    "infiniband": [],
    "numa_nodes": 2,
    "governor": "performance",
    "shared_memory_bytes": 64 << 30,
    "open_files_limit": 1 << 20,
    "cgroup_cpus": None,
    "load_average": 0.1,
}

TWO_CARDS = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \t{link}\t0-15\t0\t\tN/A\n"
    "GPU1\t{link}\t X \t0-15\t0\t\tN/A\n"
)
PARTLY = (
    "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNV4\tPHB\t0-15\t0\n"
    "GPU1\tNV4\t X \tPHB\t0-15\t0\n"
    "GPU2\tPHB\tPHB\t X \t0-15\t0\n"
)


def checks(
    machine: Machine = TWO_CORES, world_size: int = 1, variables: dict[str, str] | None = None, **system: Any
) -> tuple[Check, ...]:
    return all_checks(machine, {**CALM, **system}, variables or {}, world_size)


def about(subject: str, all_checks: tuple[Check, ...]) -> list[Check]:
    return [check for check in all_checks if check.subject == subject]


def test_a_calm_machine_is_ok_throughout() -> None:
    all_checks = checks(world_size=2)
    assert {check.level for check in all_checks} == {"ok"}
    limits = ["governor", "load", "shared memory", "ulimit", "container", "CPU formats"]
    assert [check.subject for check in all_checks] == ["torch", "backends", "GPU", "host", *limits, "ranks"]
    assert all(check.advice == "" for check in all_checks)
    (host,) = about("host", all_checks)
    assert host.text == "fake processor, 2 cores, 16 GiB, NUMA nodes 2"
    (torch,) = about("torch", checks())
    assert torch.text == "2.13.0, CUDA none, NCCL none, Python 3.11.0"


def test_every_check_that_is_not_ok_has_advice() -> None:
    all_checks = checks(
        variables={"CUDA_LAUNCH_BLOCKING": "1"}, governor="powersave", load_average=9.0, world_size=3
    )
    bad = [check for check in all_checks if check.level != "ok"]
    assert len(bad) == 4
    assert all(check.advice for check in bad)


def test_number_formats_are_listed_and_never_a_warning() -> None:
    bf16 = PrecisionSupport(name="bf16", native=False, slowdown=96.0)
    fp8 = PrecisionSupport(name="fp8", native=True)
    gpus = tuple(dataclasses.replace(gpu, compute_capability=(9, 0), precisions=(fp8,)) for gpu in GPUS)
    lines = checks(dataclasses.replace(WITH_GPUS, gpus=gpus, precisions=(bf16,)))
    (processor,) = about("CPU formats", lines)
    assert (processor.level, processor.text) == ("ok", "bf16 emulated (96 times as long as fp32)")
    (gpu,) = about("GPU formats", lines)  # both are alike
    assert gpu.text == "NVIDIA H200, compute capability 9.0: fp8 native"
    (unknown,) = about("CPU formats", checks())
    assert unknown.text == "unknown"


def test_a_torch_without_backends_fails() -> None:
    (backends,) = about("backends", checks(dataclasses.replace(TWO_CORES, backends=())))
    assert backends.level == "fail"
    (backends,) = about("backends", checks(WITH_GPUS))
    assert (backends.level, backends.text) == ("ok", "gloo, nccl")


def test_gpus_that_torch_cannot_use_fail() -> None:
    (gpu,) = about("GPU", checks(dataclasses.replace(TWO_CORES, gpu_problem="the driver is too old")))
    assert (gpu.level, gpu.text) == ("fail", "the driver is too old")
    (gpu,) = about("GPU", checks())
    assert (gpu.level, gpu.text) == ("ok", "none: runs measure the CPU")
    (gpu,) = about("GPU", checks(WITH_GPUS, gpus=[]))
    assert (gpu.level, gpu.text) == ("warn", "nvidia-smi could not be read: clocks, PCIe and MIG are unknown")


def test_a_healthy_gpu_is_one_line_and_other_processes_warn() -> None:
    (gpu,) = about("GPU 0", checks(WITH_GPUS, gpus=[FACTS]))
    assert gpu.level == "ok"
    assert gpu.text == (
        "NVIDIA H200, 143771 MiB, driver 580.65, SM clock 1980 of 1980 MHz, 700.00 W, 31 °C, "
        "ECC Enabled, MIG Disabled"
    )
    (process,) = about("GPU process", checks(WITH_GPUS, gpu_processes=["4711, python, 512 MiB"]))
    assert (process.level, process.text) == ("warn", "4711, python, 512 MiB")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"clocks_event_reasons.active": "0x0000000000000004"}, "clocks are throttled (reasons 0x4)"),
        ({"clocks_event_reasons.active": "0x0000000000000021"}, "clocks are throttled (reasons 0x21)"),
        ({"mig.mode.current": "Enabled"}, "MIG is on"),
        ({"pcie.link.width.current": "8"}, "PCIe ×8 of ×16"),
        ({"pcie.link.gen.current": "4"}, "PCIe generation 4 of 5"),
        ({"pcie.link.gen.current": "4", "clocks_event_reasons.active": "[N/A]"}, "PCIe generation 4 of 5"),
    ],
)
def test_a_gpu_held_back_warns(changes: dict[str, str], text: str) -> None:
    _, warning = about("GPU 0", checks(WITH_GPUS, gpus=[{**FACTS, **changes}]))
    assert (warning.level, warning.text) == ("warn", text)


def test_an_idle_or_unknown_state_is_not_a_warning() -> None:
    for changes in (
        {"clocks_event_reasons.active": "[N/A]", "mig.mode.current": "[N/A]"},
        {"clocks_event_reasons.active": "0x1", "pcie.link.gen.current": "1"},  # idle: the link sleeps
        {"pcie.link.gen.max": "[N/A]", "pcie.link.width.max": "[N/A]"},
    ):
        (gpu,) = about("GPU 0", checks(WITH_GPUS, gpus=[{**FACTS, **changes}]))
        assert gpu.level == "ok"


def test_links_are_read_from_a_table_without_tabs_too() -> None:
    assert links_of(PARTLY.expandtabs(8)) == links_of(PARTLY)
    assert links_of(PARTLY)[0, 2] == "PHB"
    assert links_of(PARTLY)[1, 0] == "NV4"


def test_without_pairs_there_are_no_links() -> None:
    for text in ("", "No devices were found\n", "\tGPU0\tCPU Affinity\nGPU0\t X \t0-15\n"):
        assert about("links", checks(link_matrix=text)) == []


@pytest.mark.parametrize(
    ("text", "level", "reading"),
    [
        (TWO_CARDS.format(link="NV18"), "ok", "every pair of GPUs is joined by NVLink (NV18)"),
        (PARTLY, "warn", "some pairs have NVLink and some do not (NV4, PHB)"),
        (TWO_CARDS.format(link="PIX"), "ok", "no NVLink: pairs are joined by PIX"),
        (TWO_CARDS.format(link="SYS"), "warn", "no NVLink: pairs are joined by SYS"),
    ],
)
def test_the_link_matrix_is_read_in_one_line(text: str, level: str, reading: str) -> None:
    (links,) = about("links", checks(WITH_GPUS, link_matrix=text))
    assert (links.level, links.text) == (level, reading)
    assert ("crosses CPU sockets" in links.advice) == ("SYS" in reading)


@pytest.mark.parametrize(
    ("subject", "good", "bad", "text"),
    [
        ("governor", {"governor": None}, {"governor": "powersave"}, "CPU frequency governor powersave"),
        (
            "shared memory",
            {"shared_memory_bytes": 1 << 30},
            {"shared_memory_bytes": 64 << 20},
            "64 MiB in /dev/shm",
        ),
        ("shared memory", {"shared_memory_bytes": None}, {"shared_memory_bytes": 0}, "0 MiB in /dev/shm"),
        ("ulimit", {"open_files_limit": 4096}, {"open_files_limit": 1024}, "1024 open files"),
        ("ulimit", {"open_files_limit": -1}, {"open_files_limit": 4095}, "4095 open files"),
        ("load", {"load_average": 1.5}, {"load_average": 1.6}, "load average 1.6 on 2 cores"),
    ],
)
def test_a_host_that_disturbs_measurements_warns(
    subject: str, good: dict[str, Any], bad: dict[str, Any], text: str
) -> None:
    (fine,) = about(subject, checks(**good))
    assert (fine.level, fine.advice) == ("ok", "")
    (warning,) = about(subject, checks(**bad))
    assert (warning.level, warning.text) == ("warn", text)


def test_interfaces_are_one_line_and_a_port_that_is_down_warns() -> None:
    all_checks = checks(
        interfaces=[
            {"name": "eth0", "state": "up", "speed_mbit": 10000},
            {"name": "lo", "state": "unknown", "speed_mbit": None},
        ]
    )
    (network,) = about("network", all_checks)
    assert (network.level, network.text) == ("ok", "eth0 up 10000 Mbit/s, lo unknown")
    up, down = about(
        "InfiniBand",
        checks(
            infiniband=[
                {"name": "mlx5_0", "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"},
                {"name": "mlx5_1", "state": "1: DOWN", "rate": "10 Gb/sec (4X SDR)"},
            ]
        ),
    )
    assert (up.level, up.text) == ("ok", "mlx5_0 4: ACTIVE 400 Gb/sec (4X NDR)")
    assert (down.level, down.text) == ("warn", "mlx5_1 1: DOWN 10 Gb/sec (4X SDR)")
    (limit,) = about("container", checks(cgroup_cpus=2.5))
    assert (limit.level, limit.text) == ("ok", "limited to 2.5 CPUs")


VARIABLES = {
    "fail": ["CUDA_LAUNCH_BLOCKING=1"],
    "warn": [
        *("NCCL_ALGO=Ring", "NCCL_PROTO=LL", "NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1", "NCCL_IB_DISABLE=1"),
        *("NCCL_DEBUG=INFO", "NCCL_DEBUG=info", "NCCL_DEBUG=TRACE", "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
        "TORCH_NCCL_BLOCKING_WAIT=1",
    ],
    "ok": ["NCCL_SOCKET_IFNAME=eth0", "OMP_NUM_THREADS=2", "CUDA_VISIBLE_DEVICES=0,1"],
}


@pytest.mark.parametrize("level", VARIABLES)
def test_variables_in_force_are_explained(level: str) -> None:
    for name, _, value in (text.partition("=") for text in VARIABLES[level]):
        (variable,) = about(name, checks(variables={name: value}))
        assert variable.level == level
        assert variable.text.startswith(f"{value}: ")
        assert (name in variable.advice) is (level != "ok")


def test_variables_that_do_no_harm_are_not_mentioned() -> None:
    harmless = {"NCCL_P2P_DISABLE": "0", "NCCL_DEBUG": "WARN", "CUDA_LAUNCH_BLOCKING": "0", "HOME": "/root"}
    subjects = {check.subject for check in checks(variables=harmless)}
    assert not subjects & set(harmless)


def test_ranks_have_a_core_or_a_gpu_each() -> None:
    (fits,) = about("ranks", checks(world_size=2))
    assert (fits.level, fits.text) == ("ok", "2 ranks on 2 cores")
    (crowd,) = about("ranks", checks(world_size=3))
    assert (crowd.level, crowd.advice) == ("warn", "ranks will compete for cores")
    all_checks = checks(WITH_GPUS, world_size=2)
    assert [check.text for check in all_checks if check.subject.startswith("rank ")] == [
        "cuda:0 NVIDIA H200",
        "cuda:1 NVIDIA H200",
    ]
    assert about("ranks", all_checks) == []
    (crowd,) = about("ranks", checks(WITH_GPUS, world_size=3))
    assert (crowd.level, crowd.text) == ("fail", "3 ranks on 2 GPU(s)")


def test_numa_nodes_cards_and_links_of_the_topology_are_shown() -> None:
    texts = {check.subject: check.text for check in checks(topology=TOPOLOGY.to_json())}
    assert texts["NUMA"] == "2 (cores 0-1; 2-3), distance up to 21"
    assert texts["card"] == "mlx5_1: infiniband 400 Gbit/s, NUMA node 1"
    assert texts["GPU links"] == "2 × GPU, paths SYS"
    cards = [check.text for check in checks(topology=TOPOLOGY.to_json()) if check.subject == "card"]
    assert cards[0] == "mlx5_0: infiniband 400 Gbit/s, NUMA node 0, next to GPU 0"
    assert about("NUMA", checks(topology=None)) == []
