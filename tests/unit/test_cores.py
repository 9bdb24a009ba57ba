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


# Two sockets of 32 threads with four GPUs each.
SOCKETS = (frozenset({*range(16), *range(32, 48)}), frozenset({*range(16, 32), *range(48, 64)}))
BUSES = [f"0000:{number:02x}:00.0" for number in (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)]


@pytest.fixture
def pci(tmp_path: Path) -> Path:
    """The /sys/bus/pci/devices of a host with two sockets and eight GPUs."""
    for number, bus in enumerate(BUSES):
        (tmp_path / bus).mkdir()
        text = "0-15,32-47\n" if number < 4 else "16-31,48-63\n"
        (tmp_path / bus / "local_cpulist").write_text(text)
    return tmp_path


def near_gpus(pci: Path, *gpus: int) -> list[list[int]]:
    """The cores of ranks on these GPUs."""
    near = [cores.cores_near(BUSES[gpu], pci) for gpu in gpus]
    return [cores.share_near(list(range(64)), near, rank) for rank in range(len(gpus))]


def test_the_cores_next_to_a_gpu_are_read_from_the_system(pci: Path) -> None:
    assert cores.cores_near(BUSES[0], pci) == SOCKETS[0]
    assert cores.cores_near(BUSES[7], pci) == SOCKETS[1]
    assert cores.cores_near("0000:ff:00.0", pci) is None and cores.cores_near(None, pci) is None


@pytest.mark.parametrize(
    ("gpus", "sockets", "each"),
    [
        ((0, 1, 2, 3, 4, 5, 6, 7), (0, 0, 0, 0, 1, 1, 1, 1), 8),
        ((4, 5), (1, 1), 16),  # CUDA_VISIBLE_DEVICES=4,5
        ((0, 7), (0, 1), 32),
        ((7, 0), (1, 0), 32),
        ((0, 4, 1, 5), (0, 1, 0, 1), 16),
        ((6,), (1,), 32),
    ],
)
def test_any_subset_of_gpus_gets_separate_cores_of_its_own_sockets(
    pci: Path, gpus: tuple[int, ...], sockets: tuple[int, ...], each: int
) -> None:
    shares = near_gpus(pci, *gpus)
    assert [len(share) for share in shares] == [each] * len(gpus)
    assert all({*share} <= SOCKETS[socket] for share, socket in zip(shares, sockets, strict=True))
    assert len({core for share in shares for core in share}) == each * len(gpus)


def test_sockets_with_different_numbers_of_ranks_divide_their_own_cores(pci: Path) -> None:
    assert [len(share) for share in near_gpus(pci, 0, 1, 2, 4)] == [10, 10, 10, 32]


@pytest.mark.parametrize(
    "near",
    [
        [SOCKETS[0], None],
        [SOCKETS[0], frozenset({100})],  # none of the cores this process may use
        [SOCKETS[0], frozenset(range(64))],
        [frozenset({0}), frozenset({0})],
    ],
)
def test_where_a_gpu_is_far_from_everything_known_no_rank_gets_cores_near_it(
    near: list[frozenset[int] | None],
) -> None:
    assert [cores.share_near(list(range(64)), near, rank) for rank in range(2)] == [[], []]
