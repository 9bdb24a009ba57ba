"""Ranks that ran out of memory: told by counters and samples, never guessed."""

import signal
from pathlib import Path

import pytest

from scalescope.launch.local.logs import MemoryUse
from scalescope.launch.probing import MemoryKills

_MIB = 1 << 20
_PID = 7


def write_process(root: Path, pid: int, data_kb: int, limit: int | str) -> None:
    """What the system shows of a process, as far as it is read."""
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "status").write_text(
        f"Name:\tpython\nVmPeak:\t99 kB\nVmData:\t{data_kb:8} kB\nVmStk:\t132 kB\n"
    )
    (folder / "limits").write_text(
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        f"Max data size             {limit:<20} unlimited            bytes     \n"
    )


def _group(root: Path, limit: int, stat: str, version: int = 2) -> None:
    line = "0::/job\n" if version == 2 else "4:memory:/job\n"
    folder = root / "sys/fs/cgroup" / ("" if version == 2 else "memory") / "job"
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    for path, text in (
        (root / "proc/self/cgroup", line),
        (folder / name, str(limit)),
        (folder / "memory.stat", stat),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGKILL])
def test_a_crash_near_the_limit_has_evidence(tmp_path: Path, number: signal.Signals) -> None:
    use = MemoryUse(64 * _MIB, tmp_path)
    write_process(tmp_path, _PID, data_kb=(500 + 60) * 1024, limit=(500 + 64) * _MIB)
    use.sample([_PID])
    assert use.evidence(_PID, -number) == "it had allocated 60.0 MiB of the 64.0 MiB of --memory-limit"
    assert use.evidence(_PID + 1, -number) == ""  # another rank was not


@pytest.mark.parametrize("code", [-signal.SIGTERM, -signal.SIGINT, 1, 0, None])
def test_another_end_is_another_cause(tmp_path: Path, code: int | None) -> None:
    use = MemoryUse(64 * _MIB, tmp_path)
    write_process(tmp_path, _PID, data_kb=64 * 1024, limit=64 * _MIB)
    use.sample([_PID])
    assert use.evidence(_PID, code) == ""


@pytest.mark.parametrize(("used", "limit"), [(57, 64 * _MIB), (1 << 30, "unlimited")], ids=["room", "lifted"])
def test_a_rank_with_room_crashed_for_another_reason(tmp_path: Path, used: int, limit: int | str) -> None:
    use = MemoryUse(64 * _MIB, tmp_path)
    write_process(tmp_path, _PID, data_kb=used * 1024, limit=limit)
    use.sample([_PID])
    assert use.evidence(_PID, -signal.SIGSEGV) == ""


def test_the_fullest_sample_of_the_last_second_counts(tmp_path: Path) -> None:
    use = MemoryUse(64 * _MIB, tmp_path)
    for at, used in ((0.0, 64), (0.5, 10)):
        write_process(tmp_path, _PID, data_kb=used * 1024, limit=64 * _MIB)
        use.sample([_PID], now=at)
    assert use.evidence(_PID, -signal.SIGSEGV)
    use.sample([_PID], now=1.1)
    assert use.evidence(_PID, -signal.SIGSEGV) == ""


def test_a_process_that_is_gone_leaves_its_last_sample(tmp_path: Path) -> None:
    use = MemoryUse(64 * _MIB, tmp_path)
    write_process(tmp_path, _PID, data_kb=64 * 1024, limit=64 * _MIB)
    use.sample([_PID])
    (tmp_path / f"proc/{_PID}/status").write_text("Name:\tpython\nState:\tZ (zombie)\n")
    use.sample([_PID])
    assert use.evidence(_PID, -signal.SIGSEGV)


@pytest.mark.parametrize(
    ("version", "stat"),
    [(2, "anon {}\nfile 7\nshmem 1048576\n"), (1, "rss 5\ntotal_rss {}\ntotal_shmem 1048576\n")],
)
def test_a_full_control_group_is_evidence_without_a_counter(tmp_path: Path, version: int, stat: str) -> None:
    _group(tmp_path, 64 * _MIB, stat.format(62 * _MIB), version)
    use = MemoryUse(root=tmp_path)
    use.sample([])
    assert use.evidence(_PID, -signal.SIGKILL) == "its control group held 63.0 MiB of 64.0 MiB"


def test_caches_of_files_fill_a_group_and_are_no_evidence(tmp_path: Path) -> None:
    _group(tmp_path, 64 * _MIB, f"anon {8 * _MIB}\nfile {56 * _MIB}\nshmem 0\n")
    use = MemoryUse(root=tmp_path)
    use.sample([])
    assert use.evidence(_PID, -signal.SIGKILL) == ""


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
