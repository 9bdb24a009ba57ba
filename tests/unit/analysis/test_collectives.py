"""Rows of collectives from what every rank measured, and the slow ranks and pairs among them."""

import dataclasses
from typing import Any

import pytest

from scalescope.analysis.collectives import CollectiveRow, collective_rows
from scalescope.results.result import RankRecord, Result, Status
from tests.builders.results import make_result as trained_result
from tests.builders.results import make_row as made_row
from tests.builders.results import make_trial

KEY = "all_reduce/out/1024"


def make_result(
    *samples: dict[str, list[float]],
    wrong: tuple[int, ...] = (),
    status: Status = "ok",
    world_size: int | None = None,
    **settings: Any,
) -> Result:
    """One launch from the samples of every rank; `wrong` are the wrong elements of KEY on each."""
    counts = wrong or (0,) * len(samples)
    records = [
        RankRecord(rank=rank, host="here", device="cpu", placement="", samples=of_rank, counters=counters)
        for rank, of_rank in enumerate(samples)
        if (counters := {f"{KEY}/wrong": counts[rank]})
    ]
    asked = {"benchmark": "comm", "world_size": world_size or len(samples), "dtype": "float32", **settings}
    made = trained_result(make_trial(), [])
    trial_id = str(asked["dtype"])
    return dataclasses.replace(made, trial_id=trial_id, status=status, settings=asked, ranks=records)


def only_row(*results: Result) -> CollectiveRow:
    (row,) = collective_rows(results)
    return row


def make_row(collective: str, ranks: int, size: int, time_s: float, dtype: str = "float32") -> CollectiveRow:
    return made_row(size, time_s, collective=collective, dtype=dtype, ranks=ranks, in_place=False)


def test_an_iteration_takes_as_long_as_its_slowest_rank_and_transfers_as_long_as_its_fastest() -> None:
    row = only_row(make_result({KEY: [3.0, 5.0, 4.0]}, {KEY: [1.0, 6.0, 2.0]}, {KEY: [2.0, 5.5, 1.0]}))
    assert (row.collective, row.dtype, row.ranks, row.in_place) == ("all_reduce", "float32", 3, False)
    assert row.size_bytes == 1024
    assert row.times_s == (3.0, 6.0, 4.0)
    assert row.transfers_s == (1.0, 5.0, 1.0)


def test_times_are_summarised() -> None:
    row = only_row(make_result({KEY: [1.0, 2.0, 6.0]}, {KEY: [1.0, 2.0, 6.0]}))
    assert row.time_s == 3.0
    assert row.median_s == 2.0
    assert row.variation == pytest.approx(7**0.5 / 3)
    assert only_row(make_result({KEY: [1.0]}, {KEY: [1.0]})).variation is None
    times = [float(n) for n in range(100, 0, -1)]
    row = only_row(make_result({KEY: times}, {KEY: times}))
    assert (row.quantile_s(0.0), row.quantile_s(0.95), row.quantile_s(0.99)) == (1.0, 96.0, 100.0)
    assert row.quantile_s(1.0) == 100.0


def test_waiting_is_what_the_rank_that_comes_last_does_not_do() -> None:
    row = only_row(make_result({KEY: [5.0, 5.0, 8.0]}, {KEY: [2.0, 2.0, 2.0]}))
    assert row.transfer_s == 2.0
    assert row.wait_s == 4.0  # of the mean, 6
    assert row.last_rank == 1
    first, second = [1.0, 1.0, 1.0, 2.0], [2.0, 2.0, 2.0, 1.0]
    assert only_row(make_result({KEY: first}, {KEY: second})).last_rank == 0  # 3 of 4
    assert only_row(make_result({KEY: [1.0, 2.0]}, {KEY: [2.0, 1.0]})).last_rank is None
    assert only_row(make_result({KEY: [1.0, 1.0]}, world_size=8)).last_rank is None
    # Ranks take turns in being slow: the slowest of each iteration add up to more than any rank took.
    row = only_row(make_result({KEY: [5.0, 1.0]}, {KEY: [1.0, 5.0]}))
    assert (row.time_s, row.transfer_s, row.wait_s) == (3.0, 1.0, 2.0)


def test_time_transfer_and_wait_are_means_where_times_have_two_modes() -> None:
    """The median would be one of the two modes, and jump with the next run."""
    times, shorter = [0.25e-3] * 26 + [4.25e-3] * 24, [0.25e-3] * 50
    row = only_row(make_result({KEY: times}, {KEY: shorter}))
    assert row.time_s == pytest.approx(2.17e-3)
    assert row.transfer_s == pytest.approx(0.25e-3) and row.wait_s == pytest.approx(1.92e-3)
    assert row.median_s == 0.25e-3
    assert row.modes is not None and row.modes.slow_share == pytest.approx(0.48)
    assert only_row(make_result({KEY: shorter}, {KEY: shorter})).modes is None


def test_launches_of_a_trial_are_taken_together_and_others_apart() -> None:
    rows = collective_rows(
        [
            make_result({KEY: [1.0]}, {KEY: [2.0]}),
            make_result({KEY: [4.0]}, {KEY: [3.0]}),
            make_result({KEY: [9.0]}, {KEY: [9.0]}, dtype="float16"),
        ]
    )
    assert [(row.dtype, row.times_s) for row in rows] == [("float32", (2.0, 4.0)), ("float16", (9.0,))]
    times = {KEY: [1.0]}
    row = only_row(make_result(times, times, wrong=(1, 2)), make_result(times, times, wrong=(0, 4)))
    assert row.wrong == 7


def test_only_good_results_of_this_benchmark_and_no_pairs_make_rows() -> None:
    times, pair = {KEY: [1.0]}, {"pair/0-1/1024": [1.0]}
    others = [make_result(times, times, status="invalid"), make_result(times, times, benchmark="train")]
    assert collective_rows([*others, make_result(pair, pair)]) == ()


def test_in_place_and_sizes_have_rows_of_their_own() -> None:
    samples = {"all_gather/in/64": [1.0], "all_gather/out/64": [2.0], "barrier/out/0": [3.0]}
    rows = collective_rows([make_result(samples, samples)])
    assert [(row.collective, row.in_place, row.size_bytes, row.time_s) for row in rows] == [
        ("all_gather", True, 64, 1.0),
        ("all_gather", False, 64, 2.0),
        ("barrier", False, 0, 3.0),
    ]


def test_bus_bandwidth_is_algorithm_bandwidth_times_the_factor() -> None:
    for collective, bus in (("all_reduce", 1.5e9), ("broadcast", 1e9), ("barrier", 0.0)):
        row = make_row(collective, ranks=4, size=1_000_000, time_s=1e-3)
        assert (row.algbw_bytes_per_s, row.busbw_bytes_per_s) == pytest.approx((1e9, bus))


def test_elements_are_counted_as_nccl_tests_counts_them() -> None:
    counts = {
        ("all_reduce", "float32"): 256,
        ("all_reduce", "bfloat16"): 512,
        ("broadcast", "int64"): 128,
        ("all_gather", "float32"): 64,
        ("reduce_scatter", "uint8"): 256,
    }
    for (collective, dtype), count in counts.items():
        assert make_row(collective, ranks=4, size=1024, time_s=1.0, dtype=dtype).count == count
