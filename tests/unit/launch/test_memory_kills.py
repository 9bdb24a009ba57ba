"""Ranks that the kernel ended for want of memory: told by its counters, never guessed."""

from pathlib import Path

import pytest

from scalescope.launch.memory_kills import MemoryKills

_SECOND = (
    "0::/job\n",
    "sys/fs/cgroup/job/memory.events",
    "low 0\nmax 12\noom 1\noom_kill {}\noom_group_kill 0\n",
)
_FIRST = ("4:memory:/job\n", "sys/fs/cgroup/memory/job/memory.oom_control", "under_oom 0\noom_kill {}\n")
_HOST = "proc/vmstat"


def _write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.mark.parametrize(("cgroup", "counter", "text"), [_SECOND, _FIRST], ids=["second", "first"])
def test_the_counter_of_the_group_is_evidence(tmp_path: Path, cgroup: str, counter: str, text: str) -> None:
    _write(tmp_path, "proc/self/cgroup", cgroup)
    _write(tmp_path, counter, text.format(3))
    kills = MemoryKills(tmp_path)
    assert (kills.ended(-9), kills.text(-9)) == (False, "")
    _write(tmp_path, counter, text.format(4))
    assert kills.ended(-9) and "out of memory" in kills.text(-9)
    assert not kills.ended(-15) and kills.text(-15) == ""  # another signal is another cause
    assert not kills.ended(None)


def test_the_counter_of_the_host_makes_it_likely(tmp_path: Path) -> None:
    _write(tmp_path, _HOST, "nr_free_pages 7\noom_kill 1\n")
    kills = MemoryKills(tmp_path)
    _write(tmp_path, _HOST, "nr_free_pages 7\noom_kill 2\n")
    assert not kills.ended(-9)
    assert "likely out of memory" in kills.text(-9)
    assert kills.text(1) == ""


@pytest.mark.parametrize("text", ["", "oom_kill many\n", "xoom_kill 3\n"])
def test_a_system_without_counters_says_nothing(tmp_path: Path, text: str) -> None:
    _write(tmp_path, "proc/self/cgroup", "0::/\n")
    _write(tmp_path, "sys/fs/cgroup/memory.events", text)
    kills = MemoryKills(tmp_path)
    assert (kills.ended(-9), kills.text(-9)) == (False, "")
