"""Waterfalls from recorded steps, for jobs whose communication cannot be taken away."""

import pytest

from scalescope.analysis.configurations import configurations
from scalescope.analysis.scaling.rows import scaling_rows
from scalescope.analysis.scaling.waterfall import (
    BUBBLE,
    COMMUNICATION,
    EXCHANGE,
    IDLE_HOST,
    IMBALANCE,
    MICROBATCHES,
    NOT_SEPARATED,
    SLOWED_COMPUTE,
    WAITING,
    WRAPPER,
    Waterfall,
)
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from tests.builders.results import make_result, make_trial
from tests.builders.traces import recorded_result

PLAIN_S = 0.100


def _timed(trial: Trial, step_s: float) -> list[Result]:
    return [make_result(trial, [[step_s] * 10] * trial.world_size, launch=launch) for launch in range(3)]


def _waterfall(results: list[Result]) -> Waterfall:
    waterfall = scaling_rows(configurations(results))[-1].waterfall
    assert waterfall is not None
    return waterfall


def _times(waterfall: Waterfall) -> dict[str, float]:
    return {term.name: term.time_s.value for term in waterfall.terms if term.time_s is not None}


def test_ddp_that_looks_for_unused_parameters_has_a_waterfall_from_traces() -> None:
    settings = {"strategy": "ddp", "find_unused_parameters": True}
    four = make_trial(world_size=4, oversubscribe=True, **settings)
    wrapped = make_trial(**settings)
    timed = [*_timed(make_trial(), PLAIN_S), *_timed(wrapped, 0.102), *_timed(four, 0.160)]
    results = [*timed]
    for launch in range(3):
        results.append(recorded_result(wrapped, [0.100], 0.0, idle_host_s=0.002, launch=launch))
        compute = [0.110, 0.110, 0.110, 0.130]
        results.append(recorded_result(four, compute, 0.020, idle_host_s=0.007, launch=launch))
    unknown = _waterfall(timed).term(COMMUNICATION)
    assert unknown is not None and unknown.time_s is None and unknown.reason is not None
    waterfall = _waterfall(results)
    assert waterfall.source == "trace"
    assert _times(waterfall) == pytest.approx(
        {WRAPPER: 0.002, WAITING: 0.015, COMMUNICATION: 0.020, SLOWED_COMPUTE: 0.015, IDLE_HOST: 0.005}
    )
    rest = [segment for segment in waterfall.segments if segment.name == NOT_SEPARATED]
    assert sum(segment.value for segment in rest) == pytest.approx(4 * (0.060 - 0.057) / 0.160)


def test_a_pipeline_loses_to_bubble_unequal_stages_and_exchange() -> None:
    batch = {"global_batch_size": 16}
    stages = make_trial(world_size=2, strategy="pipeline", microbatches=4, schedule="gpipe", **batch)
    plain = make_trial(**batch)
    # Stages compute 55 and 45 ms: 50 on average, 5 unequal, a bubble of 1/4 of 55, the rest exchange.
    results = [*_timed(plain, PLAIN_S), *_timed(stages, 0.080)]
    for launch in range(3):
        results.append(recorded_result(plain, [0.096], 0.0, idle_host_s=0.004, launch=launch))
        results.append(recorded_result(stages, [0.055, 0.045], 0.0, launch=launch))
    waterfall = _waterfall(results)
    assert _times(waterfall) == pytest.approx(
        {
            MICROBATCHES: 0.050 - 0.048,
            IMBALANCE: 0.005,
            BUBBLE: 0.055 / 4,
            EXCHANGE: 0.080 - 0.050 - 0.002 - 0.005 - 0.055 / 4,
        }
    )
    assert waterfall.source == "trace"
    assert waterfall.not_separated == pytest.approx(0.0, abs=1e-12)
