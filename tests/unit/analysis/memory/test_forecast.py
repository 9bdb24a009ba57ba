"""The least memory of a trial, what strategies make of a forecast, and the search for the largest batch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.analysis.memory import forecast
from scalescope.analysis.memory.capacity import (
    MOST_TRIES,
    Bracket,
    FittedLine,
    LeastMemory,
    fit_line,
    largest_batch_in,
    least_memory,
    next_batch,
)
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
from tests.builders.results import make_trial

SMALL = {"input_dim": 10, "hidden_dim": 20, "num_layers": 2, "output_dim": 5}
EXAMPLES = Path(__file__).parents[4] / "examples"
PARAMETERS = 4 * (11 * 20 + 21 * 20 + 21 * 5)


def least(**settings: object) -> LeastMemory:
    found = least_memory(make_trial(**{**SMALL, "batch_size": 7, **settings}))
    assert found is not None
    return found


def test_gradients_and_activations_of_one_rank_and_of_ddp() -> None:
    parts = least()
    assert (parts.parameters, parts.gradients, parts.optimizer) == (PARAMETERS, PARAMETERS, 0)
    assert parts.inputs == 2 * 7 * 10 * 4
    assert parts.activations == 7 * (20 + 20 + 5) * 4
    assert parts.peak == parts.parameters + parts.inputs + max(parts.gradients, parts.activations)
    parts = least(world_size=2)
    assert parts.peak == 2 * PARAMETERS + parts.inputs + parts.activations
    parts = least(world_size=2, gradient_as_bucket_view="no", optimizer="adamw")
    assert (parts.buckets, parts.optimizer, parts.model) == (PARAMETERS, 2 * PARAMETERS, 5 * PARAMETERS)
    assert parts.peak == 4 * PARAMETERS + parts.inputs + max(parts.gradients, parts.activations)


@pytest.mark.parametrize(
    ("strategy", "shares"), [("ddp", 4.0), ("zero1", 3.0), ("fsdp", 2.0), ("pipeline", 2.0)]
)
def test_strategies_cut_what_their_layout_says(strategy: str, shares: float) -> None:
    parts = least(strategy=strategy, world_size=2, optimizer="adamw", batch_size=8)
    assert parts.model == shares * PARAMETERS


def test_short_formats_halve_activations_only() -> None:
    full, short = least(), least(precision="bf16")
    assert short.activations * 2 == full.activations
    assert short.model == full.model


def test_what_is_uncertain_is_not_counted() -> None:
    assert least_memory(make_trial(workload=f"{EXAMPLES}/own_model.py:build")) is None
    text = least_memory(make_trial(workload="transformer", batch_size=10**9).replace(data="ag_news"))
    assert text is not None and (text.inputs, text.activations) == (0, 0)
    pipeline = least(strategy="pipeline", world_size=2, batch_size=8)
    assert (pipeline.inputs, pipeline.activations) == (0, 0)


def test_the_largest_batch_is_the_last_that_is_not_excluded() -> None:
    trial = make_trial(**SMALL, batch_size=1000)
    largest = largest_batch_in(trial, 100_000)
    assert largest is not None
    peaks = [least_memory(trial.replace(batch_size=batch)) for batch in (largest, largest + 1)]
    fits, fails = (peak.peak for peak in peaks if peak is not None)
    assert fits <= 100_000 < fails
    per_rank = largest_batch_in(make_trial(**SMALL, batch_size=8, world_size=2), 100_000)
    of_all = largest_batch_in(make_trial(**SMALL, global_batch_size=8, world_size=2), 100_000)
    assert per_rank is not None and of_all == 2 * per_rank
    assert largest_batch_in(make_trial(**SMALL), PARAMETERS) is None


# a forecast


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


# the largest batch


def test_a_line_is_recovered() -> None:
    line = fit_line([(batch, 1000 + 7 * batch) for batch in (1, 2, 4, 8)])
    assert line is not None
    assert (line.base, line.slope, line.largest) == (pytest.approx(1000), pytest.approx(7), 8)
    assert line.largest_batch(1000 + 7 * 50) == 50
    assert line.largest_batch(10) == 0


def test_small_batches_that_lie_elsewhere_are_left_out() -> None:
    line = fit_line([(batch, max(5000, 1000 + 700 * batch)) for batch in (1, 2, 4, 8, 16, 32)])
    assert line is not None
    assert line.slope == pytest.approx(700, rel=0.02)


def test_one_batch_makes_no_line_and_no_growth_no_prediction() -> None:
    for points in ([], [(4, 100)], [(4, 100), (4, 120)]):
        assert fit_line(points) is None
    assert FittedLine(base=10, slope=0, largest=8).largest_batch(100) is None


def search(truth: int, predicted: int | None, fits: int = 8) -> tuple[Bracket, int]:
    """Try until the search ends; batches up to `truth` fit."""
    bracket, tries = Bracket(fits=fits, fails=None), 0
    while (batch := next_batch(bracket, predicted, tries)) is not None:
        assert batch > bracket.fits
        assert bracket.fails is None or batch < bracket.fails
        tries += 1
        if batch <= truth:
            bracket = Bracket(fits=batch, fails=bracket.fails)
        else:
            bracket = Bracket(fits=bracket.fits, fails=batch)
    return bracket, tries


@settings(max_examples=60)
@given(st.integers(8, 1_000_000), st.floats(0.96, 1.05))
def test_a_good_prediction_needs_few_tries(truth: int, error: float) -> None:
    bracket, tries = search(truth, int(truth * error))
    assert bracket.is_closed
    assert bracket.fails is not None
    assert bracket.fits <= truth < bracket.fails
    assert tries <= 8


@settings(max_examples=60)
@given(st.integers(8, 1_000_000), st.one_of(st.none(), st.integers(0, 10_000_000)))
def test_any_prediction_ends_with_a_true_bracket(truth: int, predicted: int | None) -> None:
    bracket, tries = search(truth, predicted)
    assert tries <= MOST_TRIES
    assert bracket.fits <= truth
    assert bracket.fails is None or truth < bracket.fails


def test_the_search_ends_at_a_batch_of_one_or_of_all_samples() -> None:
    assert next_batch(Bracket(fits=0, fails=1), None, 0) is None
    assert next_batch(Bracket(fits=0, fails=8), None, 0) == 4
    assert Bracket(fits=2000, fails=None, most=2000).is_closed
    assert not Bracket(fits=8, fails=None, most=2000).is_closed
    assert not Bracket(fits=8, fails=1500, most=2000).is_closed
