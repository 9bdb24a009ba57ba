"""The memory of the host and the matrix of nvidia-smi, as the system writes them."""

from pathlib import Path

import pytest

from scalescope.host_memory import usable_memory
from scalescope.link_matrix import links_of, nic_links_of

GIB = 1 << 30


def made_root(root: Path, cgroup: str, **limits: str) -> Path:
    """A file system of a host with 8 GiB; `limits` are the contents of limit files, by path."""
    files = {"proc/meminfo": "MemTotal:        8388608 kB\nMemFree: 1 kB\n", "proc/self/cgroup": cgroup}
    for name, text in {**files, **limits}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "limits", "expected"),
    [
        ("", {}, 8 * GIB),
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/memory.max": "max\n"}, 8 * GIB),
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/memory.max": f"{2 * GIB}\n"}, 2 * GIB),
        ("0::/a/b\n", {"sys/fs/cgroup/a/memory.max": f"{3 * GIB}\n"}, 3 * GIB),
        ("0::/../other\n", {"sys/fs/cgroup/memory.max": f"{4 * GIB}\n"}, 4 * GIB),
        ("5:cpu,memory:/job\n", {"sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{GIB}\n"}, GIB),
        ("5:memory:/\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 8 * GIB),
        ("nonsense\n", {}, 8 * GIB),
    ],
)
def test_the_least_of_memory_and_limits_counts(
    tmp_path: Path, cgroup: str, limits: dict[str, str], expected: int
) -> None:
    assert usable_memory(made_root(tmp_path, cgroup, **limits)) == expected


def test_a_system_that_does_not_say_is_unknown(tmp_path: Path) -> None:
    assert usable_memory(tmp_path) is None


# Two GPUs and two cards of a machine with NVLink, as nvidia-smi 550 draws it.
MATRIX = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\tSYS\t0-31\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\tPXB\t32-63\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tPXB\tSYS\t X \t\t\t\t\n"
    "\n"
    "Legend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_bond_0\n\n"
)


def test_paths_to_cards_have_the_names_of_the_devices() -> None:
    assert nic_links_of(MATRIX) == {
        (0, "mlx5_0"): "PIX",
        (0, "mlx5_bond_0"): "SYS",
        (1, "mlx5_0"): "SYS",
        (1, "mlx5_bond_0"): "PXB",
    }
    assert links_of(MATRIX) == {(0, 1): "NV18", (1, 0): "NV18"}


def test_older_drivers_name_the_devices_in_the_heading() -> None:
    old = "\tGPU0\tmlx5_0\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nmlx5_0\tPHB\t X \t\n"
    assert nic_links_of(old) == {(0, "mlx5_0"): "PHB"}


def test_without_a_matrix_there_are_no_paths() -> None:
    assert nic_links_of("") == {}
