"""What strategies make of one rank's forecast, and what changes would save."""

from typing import Any

import pytest

from scalescope.analysis.memory_forecast import (
    Forecast,
    forecast_of,
    forecast_points,
    savings_of,
    with_strategy,
)

SIZES = {
    "parameters": 400,
    "buffers": 10,
    "gradients": 300,
    "optimizer": 800,
    "activations": 1000,
    "temporary": 50,
    "inputs": 20,
}
COUNTERS: dict[str, Any] = {
    **{f"forecast/as_asked/{name}": size for name, size in SIZES.items()},
    **{f"forecast/bf16/{name}": size for name, size in {**SIZES, "activations": 600}.items()},
    "forecast/largest_unit": 100,
    "measured/library": 7,
}
ALONE = Forecast(**SIZES, library=7)


def settings(strategy: str, ranks: int = 4, **changes: Any) -> dict[str, Any]:
    return {"strategy": strategy, "world_size": ranks, "precision": "fp32", **changes}


def test_one_rank_is_read_back_with_the_libraries() -> None:
    assert forecast_of(COUNTERS) == ALONE
    assert ALONE.peak == sum(SIZES.values()) + 7
    assert forecast_of({}) is None


@pytest.mark.parametrize(
    ("asked", "change"),
    [
        (settings("single", 1), 0),
        (settings("scratch_ddp"), 0),
        (settings("ddp", gradient_as_bucket_view=True), 0),
        (settings("ddp", gradient_as_bucket_view=False), 400),
        (settings("zero1", gradient_as_bucket_view=True), -600),
        (settings("fsdp"), 100 - 300 - 225 - 600),
    ],
)
def test_arithmetic_by_strategy(asked: dict[str, Any], change: int) -> None:
    found, reason = with_strategy(ALONE, asked, 100)
    assert found is not None and reason is None
    assert found.peak == ALONE.peak + change


def test_an_unknown_strategy_has_a_reason() -> None:
    assert with_strategy(ALONE, settings("pipeline"), 100) == (
        None,
        "nobody has written down how pipeline changes memory",
    )
    assert with_strategy(ALONE, settings("fsdp"), None)[0] is None


def test_savings_one_by_one() -> None:
    saved = {(one.name, one.ranks): one.saved_bytes for one in savings_of(COUNTERS, settings("single", 1))}
    assert saved["fsdp", 2] == 200 + 150 + 400 - 100
    assert saved["zero1", 8] == 700
    assert saved["bf16", None] == 400
    assert saved["checkpointing", None] is None


def test_what_is_in_use_already_saves_nothing_more() -> None:
    names = {one.name for one in savings_of(COUNTERS, settings("fsdp", precision="bf16"))}
    assert names == {"checkpointing"}
    assert savings_of({}, settings("single", 1)) == ()


def test_larger_batches_of_the_forecast_are_points_of_a_line() -> None:
    large = {f"forecast/at/512/{name}": size for name, size in {**SIZES, "activations": 9000}.items()}
    assert forecast_points({**COUNTERS, **large}, settings("single", 1)) == [(512, ALONE.peak + 8000)]
