"""The memory of the host: physical, or what a control group of either version leaves."""

from pathlib import Path

import pytest

from scalescope.host_memory import usable_memory

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
