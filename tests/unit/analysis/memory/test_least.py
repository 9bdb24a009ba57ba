"""The least memory of a trial: its parts by strategy and optimizer, and the largest batch in a room."""

import pytest

from scalescope.analysis.memory.least import LeastMemory, largest_batch_in, least_memory
from tests.builders.results import make_trial

SIZES = {"input_dim": 10, "hidden_dim": 20, "num_layers": 2, "output_dim": 5}
PARAMETERS = 4 * (11 * 20 + 21 * 20 + 21 * 5)


def least(**settings: object) -> LeastMemory:
    found = least_memory(make_trial(**{**SIZES, "batch_size": 7, **settings}))
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
    parts = least(world_size=2, gradient_as_bucket_view="no")
    assert parts.buckets == PARAMETERS
    assert parts.model == 3 * PARAMETERS


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
    assert least_memory(make_trial(workload="examples/own_model.py:build")) is None
    text = least_memory(make_trial(workload="transformer", batch_size=10**9).replace(data="ag_news"))
    assert text is not None and (text.inputs, text.activations) == (0, 0)
    pipeline = least(strategy="pipeline", world_size=2, batch_size=8)
    assert (pipeline.inputs, pipeline.activations) == (0, 0)


def test_the_largest_batch_is_the_last_that_is_not_excluded() -> None:
    trial = make_trial(**SIZES, batch_size=1000)
    largest = largest_batch_in(trial, 100_000)
    assert largest is not None
    peaks = [least_memory(trial.replace(batch_size=batch)) for batch in (largest, largest + 1)]
    fits, fails = (peak.peak for peak in peaks if peak is not None)
    assert fits <= 100_000 < fails
    per_rank = largest_batch_in(make_trial(**SIZES, batch_size=8, world_size=2), 100_000)
    of_all = largest_batch_in(make_trial(**SIZES, global_batch_size=8, world_size=2), 100_000)
    assert per_rank is not None and of_all == 2 * per_rank
    assert largest_batch_in(make_trial(**SIZES), PARAMETERS) is None
