"""What strategies make of one rank's forecast, and what changes would save."""

from collections.abc import Mapping
from typing import Any

import pytest

from scalescope.analysis.memory import forecast
from scalescope.analysis.memory.forecast import (
    Forecast,
    forecast_of,
    forecast_points,
    savings_of,
    with_strategy,
)
from scalescope.catalog.cards import card, names
from scalescope.catalog.traits import MemoryLayout, StrategyTraits
from scalescope.experiment.trial import Trial

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
    **{f"forecast/now/{name}": size for name, size in SIZES.items()},
    **{f"forecast/kept/{name}": size for name, size in {**SIZES, "gradients": 400}.items()},
    "forecast/gathered": 100,
    "forecast/other_ways_batch": 64,
    "measured/library": 7,
}
ALONE = Forecast(**SIZES, library=7)


def trial(strategy: str, ranks: int = 4, **changes: Any) -> Trial:
    return Trial(settings={"strategy": strategy, "world_size": ranks, "precision": "fp32", **changes})


def test_one_rank_is_read_back_with_the_libraries() -> None:
    assert forecast_of(COUNTERS) == ALONE
    assert ALONE.peak == sum(SIZES.values()) + 7
    assert forecast_of({}) is None
    large = {f"forecast/at/512/{name}": size for name, size in {**SIZES, "activations": 9000}.items()}
    assert forecast_points({**COUNTERS, **large}, trial("single", 1)) == [(512, ALONE.peak + 8000)]


@pytest.mark.parametrize(
    ("asked", "change"),
    [
        (trial("single", 1), 0),
        (trial("scratch_ddp"), 0),
        (trial("ddp", gradient_as_bucket_view=True), 0),
        (trial("ddp", gradient_as_bucket_view=False), 400),
        (trial("ddp", gradient_as_bucket_view=True, device="cuda"), 400),
        (trial("ddp", gradient_as_bucket_view=False, device="cuda"), 800),
        (trial("ddp", gradient_as_bucket_view=True, device="cuda", find_unused_parameters=True), 0),
        (trial("zero1", gradient_as_bucket_view=True), -600),
        (trial("zero1", gradient_as_bucket_view=True, device="cuda"), 400 - 600),
        (trial("fsdp"), 100 - 300 - 225 - 600),
        (trial("fsdp", fsdp_param_dtype="bf16"), 50 - 300 - 225 - 600),
        (trial("fsdp", reshard_after_forward=False), 400 - 300 - 225 - 600),
    ],
)
def test_arithmetic_by_strategy(asked: Trial, change: int) -> None:
    forecast, reason = with_strategy(ALONE, asked, 100)
    assert forecast is not None and reason is None
    assert forecast.peak == ALONE.peak + change


def test_an_unknown_strategy_has_a_reason() -> None:
    changed, reason = with_strategy(ALONE, trial("pipeline"), 100)
    assert changed is None and "pipeline" in (reason or "")
    assert with_strategy(ALONE, trial("fsdp"), None)[0] is None


def test_savings_are_of_one_change_each_and_not_of_what_is_in_use() -> None:
    savings = savings_of(COUNTERS, trial("single", 1))
    assert savings is not None and (savings.batch, savings.peak, savings.has_state) == (64, ALONE.peak, True)
    saved = {(change.name, change.ranks): change.saved_bytes for change in savings.changes}
    assert saved["fsdp", 2] == 200 + 150 + 400 - 100
    assert saved["zero1", 8] == 700 - 100  # the buckets keep what a single rank had dropped by then
    assert saved["bf16", None] == 400
    assert saved["checkpointing", None] is None
    savings = savings_of(COUNTERS, trial("fsdp", precision="bf16"))
    assert savings is not None and {change.name for change in savings.changes} == {"checkpointing"}
    assert savings_of({}, trial("single", 1)) is None
    assert savings_of(COUNTERS, trial("pipeline")) is None


def test_zero1_saves_its_share_of_the_state_where_that_is_known() -> None:
    within = savings_of(COUNTERS, trial("ddp", gradient_as_bucket_view=True))
    assert within is not None
    assert [change.saved_bytes for change in within.changes if change.name == "zero1"] == [400, 600, 700]
    bare = savings_of({**COUNTERS, "forecast/now/optimizer": 0}, trial("single", 1))
    assert bare is not None and not bare.has_state
    assert "zero1" not in {change.name for change in bare.changes}
    known = {name: size for name, size in COUNTERS.items() if "/kept/" not in name}
    savings = savings_of({**known, "forecast/kept/problem": "E: no"}, trial("single", 1))
    assert savings is not None
    assert {(change.saved_bytes, change.reason) for change in savings.changes if change.name == "zero1"} == {
        (None, "E: no")
    }


class Zero2(StrategyTraits):
    """A strategy that analysis does not know."""

    saving_layout = MemoryLayout(sharded=("gradients", "optimizer"))

    @staticmethod
    def memory_layout(settings: Mapping[str, Any]) -> MemoryLayout:
        return Zero2.saving_layout


def test_a_new_card_gets_a_forecast_and_a_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "names", lambda kind: (*names(kind), "zero2"))
    monkeypatch.setattr(forecast, "card", lambda kind, name: Zero2 if name == "zero2" else card(kind, name))
    monkeypatch.setattr(
        Trial, "strategy_card", property(lambda trial: forecast.card("strategies", trial.strategy))
    )
    changed, _ = with_strategy(ALONE, trial("zero2"), None)
    assert changed is not None and changed.peak == ALONE.peak - 225 - 600
    savings = savings_of(COUNTERS, trial("ddp", gradient_as_bucket_view=True))
    assert savings is not None
    assert [change.saved_bytes for change in savings.changes if change.name == "zero2"] == [550, 825, 962]
