"""Cores are dealt out in whole physical cores."""

import os
from pathlib import Path

import pytest

from scalescope import cores


def make_topology(root: Path, places: dict[int, tuple[int, int]]) -> str:
    """A /sys tree that puts each CPU on (socket, physical core); returns the pattern of its folders."""
    for cpu, (socket, core) in places.items():
        folder = root / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{socket}\n")
        (folder / "core_id").write_text(f"{core}\n")
    return str(root / "cpu{}" / "topology")


# Two sockets of two cores with two threads each, numbered as Linux does: first threads, then siblings.
SMT = {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1), 4: (0, 0), 5: (0, 1), 6: (1, 0), 7: (1, 1)}


def test_siblings_are_adjacent_and_sockets_contiguous(tmp_path: Path) -> None:
    pattern = make_topology(tmp_path, SMT)
    assert cores.by_topology(set(SMT), pattern) == [0, 4, 1, 5, 2, 6, 3, 7]


def test_only_the_cpus_asked_for_are_ordered(tmp_path: Path) -> None:
    pattern = make_topology(tmp_path, SMT)
    assert cores.by_topology({7, 4, 3, 0}, pattern) == [0, 4, 3, 7]


def test_core_numbers_are_compared_as_numbers(tmp_path: Path) -> None:
    pattern = make_topology(tmp_path, {0: (0, 10), 1: (0, 9)})
    assert cores.by_topology({0, 1}, pattern) == [1, 0]


def test_without_a_topology_cpus_are_in_order(tmp_path: Path) -> None:
    assert cores.by_topology({9, 10, 4}, str(tmp_path / "cpu{}")) == [4, 9, 10]


def test_a_broken_topology_leaves_cpus_in_order(tmp_path: Path) -> None:
    pattern = make_topology(tmp_path, {0: (1, 0), 1: (0, 0)})
    (tmp_path / "cpu1" / "topology" / "core_id").write_text("?\n")
    assert cores.by_topology({0, 1}, pattern) == [0, 1]


def test_two_ranks_share_no_physical_core(tmp_path: Path) -> None:
    ordered = cores.by_topology(set(SMT), make_topology(tmp_path, SMT))
    shares = [cores.share_of(ordered, 4, 2, index) for index in range(2)]
    assert shares == [[0, 4, 1, 5], [2, 6, 3, 7]]
    physical = [{SMT[cpu] for cpu in share} for share in shares]
    assert not physical[0] & physical[1]


@pytest.mark.parametrize(
    ("threads", "ranks", "shares"),
    [
        (2, 2, [[4, 5], [6, 7]]),
        (4, 1, [[4, 5, 6, 7]]),
        (1, 4, [[4], [5], [6], [7]]),
        (3, 2, [[], []]),
        (1, 5, [[]] * 5),
    ],
)
def test_every_rank_has_as_many_cores_or_none_has_any(
    threads: int, ranks: int, shares: list[list[int]]
) -> None:
    assert [cores.share_of([4, 5, 6, 7], threads, ranks, index) for index in range(ranks)] == shares


def test_a_quota_names_no_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(cores, "by_topology", sorted)
    monkeypatch.setattr(cores, "usable_cores", lambda: 4)
    assert cores.own_cores() == [0, 1, 2, 3]
    monkeypatch.setattr(cores, "usable_cores", lambda: 2)
    assert cores.own_cores() == []


@pytest.mark.parametrize(
    ("quota", "usable"),
    [
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("9900000 100000\n", 8),
        ("nonsense\n", 8),
    ],
)
def test_usable_cores_keep_to_the_quota(quota: str, usable: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(Path, "read_text", lambda path: quota)
    assert cores.usable_cores() == usable
