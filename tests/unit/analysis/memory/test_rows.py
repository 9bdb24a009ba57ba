"""Rows and jobs from made-up results: ranks, failures, capacity, and which line is believed."""

from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.memory.forecast import MemoryGroup, memory_groups, memory_rows
from scalescope.results.result import RankRecord, Result
from scalescope.results.run import Run

MIB = 1 << 20


def made(
    batch: int,
    *ranks: dict[str, Any],
    status: Any = "ok",
    purpose: str = "measure",
    launch: int = 0,
    **changes: Any,
) -> Result:
    settings = {
        "benchmark": "memory",
        "workload": "mlp",
        "strategy": "single",
        "world_size": 1,
        "device": "cpu",
        "batch_size": batch,
        "global_batch_size": None,
        "memory_limit": None,
        "search": True,
        "purpose": purpose,
        **changes,
    }
    records = [
        RankRecord(rank=n, host="h", device="d", placement="p", counters=counters)
        for n, counters in enumerate(ranks)
    ]
    return Result(
        trial_id=f"{batch}/{purpose}/{settings['strategy']}",
        launch=launch,
        order=0,
        status=status,
        reason=None if status == "ok" else "why",
        settings=settings,
        started_at="2026-01-01T00:00:00+00:00",
        duration_s=1.0,
        environment_id="e",
        ranks=records,
    )


def groups_of(*results: Result, host_bytes: int | None = 1 << 30) -> tuple[MemoryGroup, ...]:
    machine = {"machine": {"memory_bytes": host_bytes}}
    return memory_groups(Run(path=Path("x"), environment=machine, results=results, warnings=()))


def peak(size: int) -> dict[str, Any]:
    return {"measured/peak": size}


def forecast_at(base: int, slope: int) -> dict[str, Any]:
    """Forecasts of two large batches that lie on a line."""
    return {
        f"forecast/at/{batch}/{name}": size
        for batch in (256, 512)
        for name, size in (
            ("parameters", base),
            *((name, 0) for name in ("buffers", "gradients", "optimizer", "temporary", "inputs")),
            ("activations", slope * batch),
        )
    }


def test_the_rank_that_takes_most_and_the_forecast_of_rank_zero_count() -> None:
    forecast = {
        f"forecast/as_asked/{name}": 10 * MIB
        for name in (
            "parameters", "buffers", "gradients", "optimizer", "activations", "temporary", "inputs"
        )
    }  # fmt: skip
    (row,) = memory_rows([made(4, {**peak(60 * MIB), **forecast}, peak(70 * MIB))])
    assert row.peak == 70 * MIB
    assert row.forecast is not None and row.forecast.peak == 70 * MIB
    assert row.difference == pytest.approx(0)
    assert row.measured("temporary") is None
    (row,) = memory_rows([made(4, {"measured/peak": None, "forecast/as_asked/problem": "E: no"})])
    assert row.peak is None and row.difference is None
    assert row.no_forecast == "E: no"


def test_failures_are_rows_and_bound_the_bracket() -> None:
    tried = made(3, peak(40), purpose="search")
    (group,) = groups_of(made(1, peak(20)), made(2, peak(30)), made(4, status="oom"), tried)
    assert [row.status for row in group.rows] == ["ok", "ok", "oom"]
    assert (group.bracket.fits, group.bracket.fails, group.tries) == (3, 4, 1)
    assert group.bracket.is_closed
    (group,) = groups_of(made(1, peak(20)), made(9, status="oom"), made(10, peak(40)))
    assert (group.bracket.fits, group.bracket.fails) == (1, 9)
    few = made(5000, {**peak(30 * MIB), "data/samples": 2000}, purpose="search", device="cuda")
    (group,) = groups_of(made(1, peak(20), device="cuda"), made(1500, status="oom", device="cuda"), few)
    assert (group.bracket.fits, group.bracket.is_all) == (1, False)


def test_the_host_is_shared_out_and_only_a_limit_is_searched() -> None:
    (group,) = groups_of(made(1, peak(110 * MIB)), made(2, peak(210 * MIB)), made(4, peak(410 * MIB)))
    assert group.capacity == 1 << 30
    assert group.calculated_batch == 10
    assert not group.is_searched and group.next_try() is None
    limited = {"memory_limit": 500 * MIB}
    (group,) = groups_of(made(1, peak(110 * MIB), **limited), made(2, peak(210 * MIB), **limited))
    trial = group.next_try()
    assert trial is not None
    assert (trial.settings["purpose"], trial.settings["batch_size"]) == ("search", 4)
    rank_counters = [{**peak(100 * MIB), "device/available": size * MIB} for size in (700, 600)]
    (group,) = groups_of(made(1, *rank_counters, world_size=2, strategy="ddp"))
    assert group.capacity == 350 * MIB  # the second rank found the first one's batch


def test_a_gpu_offers_what_is_free_and_what_torch_has_already() -> None:
    counters = {
        **peak(100),
        "measured/library": 32,
        "measured/reserved": 200,
        "device/free": 800,
        "device/total": 1200,
    }
    (group,) = groups_of(made(1, counters, device="cuda"))
    assert group.capacity == 1000
    (limited,) = groups_of(made(1, counters, device="cuda", memory_limit=500))
    assert limited.capacity == 532


def test_the_forecast_is_used_where_peaks_make_no_line() -> None:
    flat = [made(batch, peak(500 * MIB + batch) | forecast_at(0, MIB)) for batch in (1, 2, 4)]
    (group,) = groups_of(*flat)
    assert group.line_is_forecast
    assert group.line is not None and group.line.slope == MIB
    (group,) = groups_of(*flat, made(600, peak(1500 * MIB), purpose="search"))
    assert not group.line_is_forecast
    (group,) = groups_of(made(1, peak(1 * MIB)), made(2, peak(20 * MIB) | forecast_at(0, MIB)))
    assert group.line_is_forecast


def test_jobs_are_kept_apart_and_a_pipeline_is_not_searched() -> None:
    groups = groups_of(
        made(2, peak(20), device="cuda"), made(2, peak(20), device="cuda", strategy="pipeline", world_size=2)
    )
    assert [group.is_searched for group in groups] == [True, False]
    assert groups_of() == ()


def test_a_batch_above_all_samples_is_no_point_and_ends_the_search() -> None:
    limited = {"memory_limit": 500 * MIB}
    few = made(5000, {**peak(30 * MIB), "data/samples": 2000}, purpose="search", **limited)
    (group,) = groups_of(made(1, peak(20 * MIB), **limited), made(2, peak(30 * MIB), **limited), few)
    assert (group.bracket.fits, group.bracket.most, group.bracket.is_all) == (2000, 2000, True)
    assert group.line is not None and group.line.slope == 10 * MIB
    assert group.next_try() is None


def test_growth_on_the_cpu_is_more_than_a_page_and_only_up() -> None:
    (group,) = groups_of(made(1, peak(4_591_616)), made(2, peak(4_595_712)))
    assert group.line is None and group.calculated_batch is None
    (group,) = groups_of(made(1, peak(4_591_616), device="cuda"), made(2, peak(4_595_712), device="cuda"))
    assert group.line is not None and group.line.slope == 4096
    sizes = {2: 48.7, 4: 62.2, 8: 54.6, 16: 59.0}
    (group,) = groups_of(*(made(batch, peak(int(size * MIB))) for batch, size in sizes.items()))
    assert group.line is None


def gpu(free: int, reserved: int, identity: str) -> dict[str, Any]:
    return {**peak(100), "measured/reserved": reserved, "device/free": free, "device/identity": identity}


def test_ranks_on_one_gpu_share_it() -> None:
    two = {"device": "cuda", "world_size": 2, "strategy": "ddp"}
    (shared,) = groups_of(made(1, gpu(800, 100, "a"), gpu(820, 80, "a"), **two))
    assert shared.capacity == (800 + 180) // 2
    (apart,) = groups_of(made(1, gpu(800, 100, "a"), gpu(820, 90, "b"), **two))
    assert apart.capacity == 900


def test_small_growth_on_the_cpu_is_that_of_libraries_where_there_is_a_forecast() -> None:
    """Batches of a few MiB: resident memory grows by twice what the tensors take."""
    rows = [made(batch, peak((16 + 2 * batch) * MIB) | forecast_at(4 * MIB, MIB)) for batch in (1, 2, 4, 8)]
    (group,) = groups_of(*rows)
    assert group.line_is_forecast and group.line is not None
    assert group.line.slope == pytest.approx(MIB)
    large = [made(batch, peak((16 + 2 * batch) * MIB) | forecast_at(4 * MIB, MIB)) for batch in (8, 64)]
    (group,) = groups_of(*large)
    assert not group.line_is_forecast
    (group,) = groups_of(*(made(batch, peak((16 + 2 * batch) * MIB)) for batch in (1, 8)))
    assert group.line is not None and not group.line_is_forecast  # better than nothing


def test_a_data_set_bounds_what_is_calculated_and_tried() -> None:
    few = {"data/samples_per_rank": 50}
    limited = {"memory_limit": 1 << 30}
    rows = [made(batch, peak((16 + batch) * MIB) | few, **limited) for batch in (8, 16)]
    (group,) = groups_of(*rows)
    assert group.calculated_batch == 50
    tried = group.next_try()
    assert tried is not None and tried.micro_batch_size == 50
    done = made(50, peak(66 * MIB) | few, purpose="search", **limited)
    (group,) = groups_of(*rows, done)
    assert group.bracket.is_all and group.next_try() is None
