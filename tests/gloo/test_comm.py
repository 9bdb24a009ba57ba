"""`comm` end to end on real CPU ranks: every collective in every type, checked, shown and stored."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from scalescope.catalog.benchmarks.comm import DTYPE_BYTES
from scalescope.catalog.collectives import COLLECTIVES, collective_named
from scalescope.report.comm.nccl_tests import parse
from tests.conftest import TINY
from tests.gloo.conftest import Start, start_as_ranks
from tests.gloo.real_runs import FinishedRun, RunsHere
from tests.speed import duration

pytestmark = pytest.mark.gloo

_COMM = ("comm", "--device=cpu", "--time-per-size=2ms")
_ALL = tuple(COLLECTIVES)
_SHARED = {"all_gather", "all_to_all", "reduce_scatter"}
_IN_PLACE_VARIANTS = {name: set(collective_named(name).in_place) for name in _ALL}
_FIELDS = {
    "size_bytes",
    "time_s",
    "algbw_bytes_per_s",
    "busbw_bytes_per_s",
    "wrong",
    "dtype",
    "world_size",
    "in_place",
    "iterations",
    "p5_s",
    "median_s",
    "p95_s",
    "p99_s",
    "cv",
    "two_modes",
    "transfer_s",
    "wait_s",
    "last_rank",
}


def _communication(run: FinishedRun) -> dict[str, list[dict[str, Any]]]:
    """results.json → communication of a run that went well, with nothing wrong."""
    assert run.returncode == 0, run.stdout + run.stderr
    by_collective: dict[str, list[dict[str, Any]]] = run.summary["results"]["communication"]
    assert {row["wrong"] for rows in by_collective.values() for row in rows} == {0}
    return by_collective


def _sizes(rows: list[dict[str, Any]]) -> set[int]:
    return {row["size_bytes"] for row in rows}


def _rows_of(text: str) -> set[tuple[str, int | None, str, int, bool, int]]:
    return {
        (row.collective, row.ranks, row.dtype, row.size_bytes, row.in_place, row.wrong)
        for row in parse(text, "test")
    }


@pytest.mark.basic
def test_every_collective_is_measured_shown_and_stored(run_here: RunsHere, tmp_path: Path) -> None:
    run = run_here(*_COMM, "--world-size=2", "-e", "64K", f"--json-nccl={tmp_path / 'nccl.json'}")
    by_collective = _communication(run)
    assert set(by_collective) == set(_ALL)
    powers = {2**power for power in range(3, 17)}
    for name, rows in by_collective.items():
        assert _sizes(rows) == ({0} if name == "barrier" else powers)
        assert {row["in_place"] for row in rows} == _IN_PLACE_VARIANTS[name]
        assert len(rows) == len(_sizes(rows)) * len(_IN_PLACE_VARIANTS[name])
        for row in rows:
            assert set(row) >= _FIELDS
            assert (row["dtype"], row["world_size"]) == ("float32", 2)
            assert row["iterations"] >= 3  # fewest where a busy machine makes one of them long
            assert 0 < row["median_s"] <= row["p95_s"] <= row["p99_s"]
            if name in ("broadcast", "reduce"):  # with a root, transfer and waiting cannot be separated
                assert row["transfer_s"] is None
            else:
                assert 0 < row["transfer_s"] <= row["time_s"]
            factor = collective_named(name).bus_factor(2)
            assert row["busbw_bytes_per_s"] == pytest.approx(factor * row["size_bytes"] / row["time_s"])

    stored = {
        (name, 2, "float32", row["size_bytes"], row["in_place"], 0)
        for name, rows in by_collective.items()
        for row in rows
    }
    assert _rows_of(run.stdout) == stored
    assert _rows_of((tmp_path / "nccl.json").read_text()) == stored

    curves = json.loads((run.folder / "curve.json").read_text())["curves"]
    assert {curve["collective"] for curve in curves} == {name for name in _ALL if name != "barrier"}
    for curve in curves:
        assert (curve["dtype"], curve["world_size"]) == ("float32", 2)
        assert {size for size, _ in curve["points"]} == powers


def test_every_type_is_carried_right(run_here: RunsHere) -> None:
    flags = ("-b", "1K", "-e", "8K", "-f", "8", "-n", "2", f"--dtype={','.join(DTYPE_BYTES)}")
    by_collective = _communication(run_here(*_COMM, "--world-size=2", *flags))
    assert set(by_collective) == set(_ALL)
    for name, rows in by_collective.items():
        assert {row["dtype"] for row in rows} == set(DTYPE_BYTES)
        if name != "barrier":
            assert _sizes(rows) == {1024, 8192}


def test_three_ranks_count_only_what_they_carry(run_here: RunsHere) -> None:
    """Where parts must be equal, the size is the one that was carried, not the one that was asked for."""
    flags = ("-b", "8", "-e", "4096", "-f", "8", "-n", "2", "--dtype=float32,int8")
    by_collective = _communication(run_here(*_COMM, "--world-size=3", *flags))
    assert set(by_collective) == set(_ALL)
    for name, rows in by_collective.items():
        by_type = {
            kind: _sizes([row for row in rows if row["dtype"] == kind]) for kind in ("float32", "int8")
        }
        if name in _SHARED:
            assert by_type == {"float32": {60, 504, 4092}, "int8": {6, 63, 510, 4095}}
        elif name != "barrier":
            assert by_type == {"float32": {8, 64, 512, 4096}, "int8": {8, 64, 512, 4096}}
        assert {row["world_size"] for row in rows} == {3}


def test_in_place_or_out_of_place_can_be_measured_alone(run_here: RunsHere) -> None:
    flags = ("--world-size=2", "-b", "1K", "-e", "1K", "-n", "2")
    for in_place, flag in ((True, "--in-place"), (False, "--out-of-place")):
        by_collective = _communication(run_here(*_COMM, *flags, flag))
        assert set(by_collective) == {name for name in _ALL if in_place in _IN_PLACE_VARIANTS[name]}
        assert {row["in_place"] for rows in by_collective.values() for row in rows} == {in_place}


def test_a_gate_that_nothing_reaches(run_here: RunsHere) -> None:
    flags = ("--collective=all_reduce,barrier", "--world-size=2", "-b", "1K", "-e", "1K", "-n", "2")
    missed = run_here(*_COMM, *flags, "--min-busbw=1000GB/s")
    assert missed.returncode == 8
    assert "1,000 GB/s" in missed.stdout and "all_reduce" in missed.stdout
    assert run_here(*_COMM, *flags, "--min-busbw=1B/s").returncode == 0


_CORRUPTION = """
import sys

if "scalescope.worker.process.zygote" in sys.orig_argv:
    import torch.distributed as dist

    all_reduce = dist.all_reduce

    def corrupted(tensor, *arguments, **options):
        all_reduce(tensor, *arguments, **options)
        if dist.get_rank() == 1 and tensor.numel() == 256:
            tensor[7] += 1

    dist.all_reduce = corrupted
"""


def test_a_corrupted_result_makes_the_trial_invalid(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_CORRUPTION)
    flags = ("--collective=all_reduce", "--world-size=2", "-b", "512", "-e", "2K", "-n", "2")
    run = start(*_COMM, *flags, PYTHONPATH=str(tmp_path)).finish()
    assert run.returncode == 6
    (result,) = run.results
    assert (result["status"], result["rank"]) == ("invalid", 1)
    wrong = [rank["counters"]["all_reduce/in/1024/wrong"] for rank in result["ranks"]]
    assert wrong == [0, 1]
    assert result["reason"] in run.stdout
    assert run.summary["results"]["communication"] == {}


_ONE_RANK_IS_HELD_UP = """
import sys

if "scalescope.worker.process.zygote" in sys.orig_argv:
    import time

    import torch.distributed as dist

    all_reduce = dist.all_reduce

    def held_up(tensor, *arguments, **options):
        all_reduce(tensor, *arguments, **options)
        if dist.get_rank() == 1 and tensor.numel() == 4096:
            time.sleep(0.2)

    dist.all_reduce = held_up
"""


def test_sizes_beyond_the_first_that_takes_too_long_are_left_out_on_all_ranks(
    start: Start, tmp_path: Path
) -> None:
    """Only rank 1 sees that 16 KiB take long; a rank that went on alone would wait for it for ever."""
    (tmp_path / "sitecustomize.py").write_text(_ONE_RANK_IS_HELD_UP)
    run = start(
        "scale",
        *TINY,
        "--world-size=2",
        "--repeats=1",
        f"--stall-timeout={duration(20)}",
        PYTHONPATH=str(tmp_path),
    ).finish()
    assert run.returncode == 0, run.stderr
    exchange = run.only(benchmark="comm")
    assert (exchange["status"], exchange["settings"]["longest_exchange"]) == ("ok", 0.05)
    first, second = (set(rank["samples"]) for rank in exchange["ranks"])
    assert first == second
    # On a busy machine a smaller one may take long as well.
    assert first <= {f"all_reduce/in/{size}" for size in (1 << 10, 1 << 12, 1 << 14)}


@pytest.mark.parametrize(
    ("flags", "step"),
    [(("--world-size=2", "-e", "4K"), 3), (("--world-size=3", "--pairs"), 2)],
    ids=["together", "pairs"],
)
def test_a_deadlocked_rank_is_named(run_here: RunsHere, flags: tuple[str, ...], step: int) -> None:
    run = run_here(*_COMM, *flags, f"--stall-timeout={duration(2)}", SCALESCOPE_FAULT=f"deadlock@1:{step}")
    assert run.returncode == 5
    (result,) = run.results
    assert (result["status"], result["rank"], result["step"]) == ("hang", 1, step)
    assert run_here.leftovers() == []


def test_comm_on_attached_ranks(start: Start) -> None:
    first, second = start_as_ranks(start, *_COMM, "-e", "4K")
    by_collective = _communication(first.finish())
    assert second.finish().returncode == 0
    assert set(by_collective) == set(_ALL)
    assert _sizes(by_collective["all_reduce"]) == {2**power for power in range(3, 13)}
    assert first.leftovers() == second.leftovers() == []


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("-b", "0"), 2, "--min-bytes"),
        (("-e", "1X"), 2, "1X"),
        (("--dtype=complex64",), 2, "complex64"),
        (("--collective=all_reduce", "--out-of-place"), 2, "all_reduce"),
        (("--min-busbw=fast",), 2, "10GB/s"),
        (("--link=1gbyte",), 2, "100mbit"),
        (("--backend=nccl",), 3, "--backend nccl"),
    ],
)
def test_bad_input_is_one_line(run_here: RunsHere, flags: tuple[str, ...], code: int, message: str) -> None:
    run = run_here(*_COMM, "--world-size=2", *flags)
    assert run.returncode == code
    assert message in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert not run.folder.exists()


def test_a_shaped_link_without_root_is_refused_in_one_line(
    run_here: RunsHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    run = run_here(*_COMM, "--world-size=2", "--link=1gbit")
    assert run.returncode == 3
    (line,) = run.stderr.splitlines()
    assert "--link" in line and "root" in line
    assert run.results == []
    assert not run.folder.exists()


@pytest.mark.netns
def test_a_missing_tool_for_a_shaped_link_is_named(run_here: RunsHere) -> None:
    run = run_here(*_COMM, "--world-size=2", "--link=1gbit", PATH="/nowhere")
    assert run.returncode == 3
    (line,) = run.stderr.splitlines()
    assert all(tool in line for tool in ("--link", "ip", "tc", "nsenter", "unshare"))
    assert not run.folder.exists()
