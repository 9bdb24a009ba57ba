"""Facts about the system are read from /sys and nvidia-smi; what is missing stays missing."""

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from scalescope.inspection import TOOL_LIMIT_S, inspect_system, run_tool
from tests.speed import patience

SMI = """\
#!{python}
import sys
asked = sys.argv[1]
if asked == "topo":
    print("\\tGPU0\\nGPU0\\t X ")
elif asked.startswith("--query-gpu="):
    names = asked.partition("=")[2].split(",")
    values = {{"index": "0", "name": "NVIDIA H200", "mig.mode.current": "[N/A]"}}
    print(", ".join(values.get(name, "7") for name in names))
elif asked.startswith("--query-compute-apps="):
    print("4711, python, 512 MiB")
    print("No running processes found")
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty system without nvidia-smi."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def add_program(root: Path, text: str) -> None:
    path = root.parent / "programs" / "nvidia-smi"
    path.write_text(text)
    path.chmod(0o755)


def test_an_empty_system_has_no_facts_but_its_limits(root: Path) -> None:
    facts = inspect_system(root)
    assert isinstance(facts.pop("load_average"), float)
    assert isinstance(facts.pop("open_files_limit"), int)
    assert isinstance(facts.pop("locked_memory_limit"), int)
    facts.pop("variables")
    assert facts == {
        "gpus": [],
        "link_matrix": None,
        "gpu_processes": [],
        "interfaces": [],
        "infiniband": [],
        "numa_nodes": None,
        "governor": None,
        "shared_memory_bytes": None,
        "cgroup_cpus": None,
        "cgroup_memory_bytes": None,
    }


def test_a_whole_system(root: Path) -> None:
    net = root / "sys/class/net"
    write(net / "eth0/operstate", "up\n")
    write(net / "eth0/speed", "10000\n")
    write(net / "eth1/operstate", "down\n")
    write(net / "eth1/speed", "-1\n")
    write(net / "lo/operstate", "unknown\n")
    write(net / "bonding_masters", "bond0\n")
    port = root / "sys/class/infiniband/mlx5_0/ports/1"
    write(port / "state", "4: ACTIVE\n")
    write(port / "rate", "400 Gb/sec (4X NDR)\n")
    for node in range(2):
        (root / f"sys/devices/system/node/node{node}").mkdir(parents=True)
    write(root / "sys/devices/system/node/possible", "0-1\n")
    write(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
    (root / "dev/shm").mkdir(parents=True)
    write(root / "sys/fs/cgroup/cpu.max", "250000 100000\n")
    write(root / "sys/fs/cgroup/memory.max", "8589934592\n")
    facts = inspect_system(root)
    assert facts["interfaces"] == [
        {"name": "eth0", "state": "up", "speed_mbit": 10000},
        {"name": "eth1", "state": "down", "speed_mbit": None},
        {"name": "lo", "state": "unknown", "speed_mbit": None},
    ]
    assert facts["infiniband"] == [{"name": "mlx5_0", "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"}]
    assert facts["numa_nodes"] == 2
    assert facts["governor"] == "powersave"
    status = os.statvfs(root / "dev/shm")
    assert facts["shared_memory_bytes"] == status.f_blocks * status.f_frsize
    assert facts["cgroup_cpus"] == 2.5
    assert facts["cgroup_memory_bytes"] == 8 << 30


def test_a_container_without_limits_has_none(root: Path) -> None:
    write(root / "sys/fs/cgroup/cpu.max", "max 100000\n")
    write(root / "sys/fs/cgroup/memory.max", "max\n")
    facts = inspect_system(root)
    assert (facts["cgroup_cpus"], facts["cgroup_memory_bytes"]) == (None, None)


def test_interfaces_are_links_as_in_the_real_sys(root: Path) -> None:
    write(root / "sys/devices/virtual/net/lo/operstate", "unknown\n")
    (root / "sys/class/net").mkdir(parents=True)
    (root / "sys/class/net/lo").symlink_to(root / "sys/devices/virtual/net/lo")
    assert [interface["name"] for interface in inspect_system(root)["interfaces"]] == ["lo"]


def test_the_output_of_nvidia_smi_is_read(root: Path) -> None:
    add_program(root, SMI.format(python=sys.executable))
    facts = inspect_system(root)
    (gpu,) = facts["gpus"]
    assert gpu["name"] == "NVIDIA H200"
    assert gpu["mig.mode.current"] == "[N/A]"
    assert gpu["driver_version"] == "7"
    assert facts["link_matrix"].splitlines() == ["\tGPU0", "GPU0\t X "]
    assert facts["gpu_processes"] == ["4711, python, 512 MiB"]


@pytest.mark.parametrize("text", [f"#!{sys.executable}\nraise SystemExit(9)\n", "not a program"])
def test_a_failing_nvidia_smi_gives_nothing(root: Path, text: str) -> None:
    add_program(root, text)
    facts = inspect_system(root)
    assert (facts["gpus"], facts["link_matrix"], facts["gpu_processes"]) == ([], None, [])


def test_nvidia_smi_that_hangs_is_asked_once_and_ended_with_its_children(tmp_path: Path, root: Path) -> None:
    asked, child = tmp_path / "asked", tmp_path / "child"
    sleep = shutil.which("sleep", path=os.defpath)
    add_program(root, f"#!/bin/sh\necho asked >>{asked}\n{sleep} 1000 &\necho $! >{child}\nwait\n")

    facts = inspect_system(root, tool_limit_s=0.5)

    assert facts["gpus"] == []
    assert facts["link_matrix"] is None
    assert asked.read_text() == "asked\n"
    deadline = time.monotonic() + patience(10)
    while is_running(int(child.read_text())):  # a killed process ends when it gets a core
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether a process lives; one that was ended may wait to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_output_of_a_tool_that_is_not_utf8_is_spelled_out() -> None:
    done = run_tool(["/bin/sh", "-c", r"printf 'caf\351'; printf '\377' >&2"])

    assert (done.stdout, done.stderr) == ("caf\\xe9", "\\xff")


def test_questions_to_tools_take_at_most_five_seconds() -> None:
    assert TOOL_LIMIT_S <= 5.0
