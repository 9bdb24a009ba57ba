"""The waterfall of a step: its terms add up to the measured step, and ablations replace what a trace says."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.events import Event, StepEvents
from scalescope.analysis.recording import StepRecording
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.training import step_waterfall as waterfalls
from scalescope.analysis.training.activity import LongStep, RankActivity, activity_of
from scalescope.analysis.training.step_waterfall import StepWaterfall, step_waterfall
from scalescope.experiment.explanations import without_optimizer
from scalescope.results.result import HOST_PARTS
from scalescope.results.traces import step_parts
from tests.builders.results import make_configuration, make_trial
from tests.simulated.costs import simulated_record

ON_CPU = make_trial(num_workers=0)
ON_GPU = ON_CPU.replace(device="cuda")
STEP_S = 0.100
PARTS = {
    step_parts.FORWARD: 0.020,
    step_parts.BACKWARD: 0.030,
    step_parts.OPTIMIZER: 0.005,
    step_parts.COPIES: 0.005,
    step_parts.IDLE_INPUT: 0.010,
    step_parts.IDLE_SYNC: 0.060,
    step_parts.IDLE_HOST: 0.020,
}  # 60 busy, and 90 idle of which 30 remain without a profiler


def recording(parts: Mapping[str, float] = PARTS, rank: int = 0) -> StepRecording:
    whole = dict.fromkeys(step_parts.PARTS, 0.0) | dict(parts)
    return StepRecording(
        rank=rank, parts=whole, recorded_step_s=math.fsum(whole.values()), plain_step_s=STEP_S
    )


def activity(rank: int = 0, **host_s: float) -> RankActivity:
    return RankActivity(rank=rank, host_s=host_s)


def saved_by_preloading(step_s: float, *, of_s: float = STEP_S) -> Estimate:
    """What input costs where a step with preloaded batches takes so long."""
    return Estimate(of_s - step_s)


def no_update(step_s: float) -> Configuration:
    ablation = without_optimizer(ON_GPU)
    assert ablation is not None
    return make_configuration(ablation, step_s)


def on_gpu(parts: Mapping[str, float] = PARTS, step_s: float = STEP_S, **ablations: Any) -> StepWaterfall:
    waterfall = step_waterfall(make_configuration(ON_GPU, step_s), recording(parts), (), **ablations)
    assert waterfall is not None
    return waterfall


def on_cpu(*activities: RankActivity, step_s: float = STEP_S, **ablations: Any) -> StepWaterfall:
    waterfall = step_waterfall(make_configuration(ON_CPU, step_s), None, activities, **ablations)
    assert waterfall is not None
    return waterfall


def total(waterfall: StepWaterfall) -> float:
    return math.fsum(term.time_s.value for term in waterfall.terms)


def source(waterfall: StepWaterfall, name: str) -> str:
    term = waterfall.term(name)
    assert term is not None
    return term.source


# a GPU


def test_on_a_gpu_kernels_are_as_recorded_and_idle_time_is_what_is_left() -> None:
    waterfall = on_gpu()
    assert waterfall.step_s == pytest.approx(STEP_S)
    times = {term.name: term.time_s.value for term in waterfall.terms}
    assert times == pytest.approx(
        {
            waterfalls.FORWARD: 0.020,
            waterfalls.BACKWARD: 0.030,
            waterfalls.OPTIMIZER: 0.005,
            waterfalls.COPIES: 0.005,
            waterfalls.IDLE_INPUT: 0.010,
            waterfalls.IDLE_SYNC: 0.0225,  # of 30 that remain beside input, 60 parts of 80
            waterfalls.IDLE_HOST: 0.0075,
        }
    )
    assert total(waterfall) == pytest.approx(STEP_S)
    assert {term.source for term in waterfall.terms} == {"trace"}


def test_kernels_are_scaled_to_the_step_and_idle_time_may_have_no_cause() -> None:
    waterfall = on_gpu(step_s=0.030)
    assert total(waterfall) == pytest.approx(0.030)
    assert waterfall.time_s(waterfalls.FORWARD) == pytest.approx(0.010)
    assert waterfall.time_s(waterfalls.IDLE_SYNC) == 0.0
    waterfall = on_gpu({step_parts.FORWARD: 0.040})
    assert waterfall.time_s(waterfalls.IDLE_UNKNOWN) == pytest.approx(0.060)
    assert total(waterfall) == pytest.approx(STEP_S)


def test_what_preloaded_batches_save_replaces_the_trace() -> None:
    # They save 25 ms: 5 of copies, which have a term of their own, and 20 of waiting.
    waterfall = on_gpu(input_s=saved_by_preloading(0.075))
    assert waterfall.time_s(waterfalls.IDLE_INPUT) == pytest.approx(0.020)
    assert source(waterfall, waterfalls.IDLE_INPUT) == "ablation"
    assert total(waterfall) == pytest.approx(STEP_S)
    waterfall = on_gpu(input_s=saved_by_preloading(0.110))
    assert waterfall.term(waterfalls.IDLE_INPUT) is None
    assert total(waterfall) == pytest.approx(STEP_S)


def test_the_host_s_time_in_the_optimizer_counts_for_the_optimizer() -> None:
    waterfall = on_gpu(without_optimizer=no_update(0.090))
    assert waterfall.time_s(waterfalls.OPTIMIZER) == pytest.approx(0.010)
    assert waterfall.time_s(waterfalls.IDLE_HOST) == pytest.approx(0.0025)
    assert source(waterfall, waterfalls.OPTIMIZER) == "ablation"
    assert total(waterfall) == pytest.approx(STEP_S)
    waterfall = on_gpu(without_optimizer=no_update(0.020))
    assert waterfall.time_s(waterfalls.OPTIMIZER) == pytest.approx(0.005 + 0.0075)
    assert waterfall.term(waterfalls.IDLE_HOST) is None
    parts = {step_parts.OTHER_KERNELS: 0.060, step_parts.IDLE_HOST: 0.040}
    waterfall = on_gpu(parts, without_optimizer=no_update(0.090))
    assert waterfall.time_s(waterfalls.OPTIMIZER) == pytest.approx(0.010)
    assert waterfall.time_s(waterfalls.OTHER_KERNELS) == pytest.approx(0.050)
    assert waterfall.time_s(waterfalls.IDLE_HOST) == pytest.approx(0.040)


def test_of_several_ranks_the_recorded_one_is_named() -> None:
    assert on_gpu().recorded_rank is None
    two = make_trial(world_size=2, strategy="ddp").replace(device="cuda")
    waterfall = step_waterfall(make_configuration(two, STEP_S), recording(rank=1), ())
    assert waterfall is not None and waterfall.recorded_rank == 1


TIMES = st.floats(0.0, 0.2)


@settings(max_examples=40)
@given(
    st.dictionaries(st.sampled_from(step_parts.PARTS), TIMES, min_size=1),
    st.floats(0.001, 0.3),
    st.none() | st.floats(0.001, 0.3),
    st.none() | st.floats(0.001, 0.3),
)
def test_terms_of_a_gpu_s_step_always_add_up(
    parts: dict[str, float], step_s: float, loaded_s: float | None, updated_s: float | None
) -> None:
    ablations = {
        "input_s": None if loaded_s is None else saved_by_preloading(loaded_s, of_s=step_s),
        "without_optimizer": None if updated_s is None else no_update(updated_s),
    }
    waterfall = on_gpu(parts, step_s, **ablations)
    assert total(waterfall) == pytest.approx(step_s)
    assert all(term.time_s.value > 0.0 for term in waterfall.terms)


# the CPU


def test_the_terms_are_means_over_ranks_that_are_known() -> None:
    waterfall = on_cpu(activity(input=0.010, forward=0.020, backward=0.040, optimizer=0.010))
    times = {term.name: (term.time_s.value, term.source) for term in waterfall.terms}
    assert times == {
        waterfalls.INPUT: (pytest.approx(0.010), "clock"),
        waterfalls.FORWARD: (pytest.approx(0.020), "clock"),
        waterfalls.BACKWARD: (pytest.approx(0.040), "clock"),
        waterfalls.OPTIMIZER: (pytest.approx(0.010), "clock"),
        waterfalls.REST: (pytest.approx(0.020), "rest"),
    }
    waterfall = on_cpu(activity(0, forward=0.020), activity(1, forward=0.060), RankActivity(rank=2))
    assert waterfall.time_s(waterfalls.FORWARD) == pytest.approx(0.040)
    assert waterfall.time_s(waterfalls.REST) == pytest.approx(0.060)


def test_on_the_cpu_the_input_is_what_preloaded_batches_save() -> None:
    host = activity(input=0.010, forward=0.050, backward=0.030, optimizer=0.010)
    waterfall = on_cpu(host, input_s=saved_by_preloading(0.060))
    assert waterfall.time_s(waterfalls.INPUT) == pytest.approx(0.040)
    assert source(waterfall, waterfalls.INPUT) == "ablation"
    assert waterfall.time_s(waterfalls.FORWARD) == pytest.approx(0.050 * 60 / 90)
    assert total(waterfall) == pytest.approx(STEP_S)


def test_the_interval_of_an_ablation_is_kept() -> None:
    full = make_configuration(ON_CPU, 0.100, 0.104)
    host = activity(input=0.010, forward=0.090)
    waterfall = step_waterfall(full, None, (host,), input_s=Estimate(0.040, 0.030, 0.050))
    assert waterfall is not None
    term = waterfall.term(waterfalls.INPUT)
    assert term is not None and term.time_s.has_interval


def test_a_run_without_host_times_or_a_recording_has_no_waterfall() -> None:
    assert step_waterfall(make_configuration(ON_CPU, STEP_S), None, ()) is None
    assert step_waterfall(make_configuration(ON_CPU, STEP_S), None, (RankActivity(rank=0),)) is None
    host = activity(**dict.fromkeys(HOST_PARTS, 0.01))
    assert step_waterfall(make_configuration(ON_GPU, STEP_S), None, (host,)) is None


@settings(max_examples=40)
@given(
    st.fixed_dictionaries(dict.fromkeys(HOST_PARTS, TIMES)),
    st.floats(0.001, 0.3),
    st.none() | st.floats(0.001, 0.3),
)
def test_terms_of_the_cpu_s_step_always_add_up(
    host_s: dict[str, float], step_s: float, loaded_s: float | None
) -> None:
    input_s = None if loaded_s is None else saved_by_preloading(loaded_s, of_s=step_s)
    waterfall = on_cpu(activity(**host_s), step_s=step_s, input_s=input_s)
    assert total(waterfall) == pytest.approx(step_s)
    assert all(term.time_s.value > 0.0 for term in waterfall.terms)


# the ideal, and what a record holds


def test_the_ideal_is_the_model_s_operations_at_the_speed_of_a_bare_product() -> None:
    configuration = make_configuration(ON_CPU, STEP_S)
    launches = tuple(
        dataclasses.replace(launch, matmul_flops_per_s=1e12) for launch in configuration.launches
    )
    known = dataclasses.replace(configuration, launches=launches)
    waterfall = step_waterfall(known, None, (activity(forward=0.05),))
    assert waterfall is not None and waterfall.ideal_s is not None
    workload = ON_CPU.options(ON_CPU.workload_card)
    assert waterfall.ideal_s == pytest.approx(workload.flops_per_sample() * 10 / 1e12)
    assert on_cpu(activity(forward=0.05)).ideal_s is None


def test_a_record_gives_the_host_s_time_by_part_where_it_has_it() -> None:
    counters: dict[str, Any] = {"host/input_s": 0.5, "host/forward_s": 1, "host/backward_s": None, "other": 3}
    made = activity_of(simulated_record(3, {}, counters))
    assert (made.rank, made.host_s) == (3, {"input": 0.5, "forward": 1.0})
    assert activity_of(simulated_record(0, {}, {})).host_s == {}


def test_a_step_of_the_users_own_is_one_term_beside_its_input() -> None:
    waterfall = on_cpu(activity(input=0.020), activity(1, input=0.040))
    assert {term.name: term.time_s.value for term in waterfall.terms} == {
        waterfalls.INPUT: pytest.approx(0.030),
        waterfalls.WHOLE: pytest.approx(0.070),
    }
    ablated = on_cpu(activity(input=0.020), input_s=saved_by_preloading(0.090))
    assert ablated.time_s(waterfalls.INPUT) == pytest.approx(0.010)
    assert total(ablated) == pytest.approx(STEP_S)
    configuration = make_configuration(ON_CPU.replace(strategy="ddp", world_size=2), STEP_S)
    waterfall = step_waterfall(configuration, None, (activity(input=0.0),))
    assert waterfall is not None
    assert [term.name for term in waterfall.terms] == [waterfalls.WHOLE_AND_EXCHANGE]


def _events(*costs_s: float, steps: tuple[int, ...] = (4, 9)) -> StepEvents:
    events = tuple(
        Event(
            kind="evaluation", period=5 * number, steps=(steps,), length_s=5 * number * cost_s, cost_s=cost_s
        )
        for number, cost_s in enumerate(costs_s, start=1)
    )
    return StepEvents(plain_s=STEP_S - math.fsum(costs_s), events=events)


def test_events_are_terms_of_their_own_and_all_others_are_those_of_the_plain_step() -> None:
    host = activity(input=0.01, forward=0.02, backward=0.03, optimizer=0.01)
    events = _events(0.02, 0.005)
    waterfall = step_waterfall(make_configuration(ON_CPU, STEP_S), None, (host,), events=events)
    assert waterfall is not None and waterfall.events is events
    assert waterfall.time_s("evaluation every 5 steps") == 0.02
    assert waterfall.time_s("evaluation every 10 steps") == 0.005
    assert waterfall.time_s(waterfalls.REST) == pytest.approx(0.005)
    assert math.fsum(term.time_s.value for term in waterfall.terms) == pytest.approx(STEP_S)
    on_a_gpu = step_waterfall(make_configuration(ON_GPU, STEP_S), recording(), (), events=_events(0.01))
    assert on_a_gpu is not None
    assert math.fsum(term.time_s.value for term in on_a_gpu.terms) == pytest.approx(STEP_S)
    assert on_a_gpu.time_s(waterfalls.FORWARD) == pytest.approx(PARTS[step_parts.FORWARD])


def test_an_event_inside_a_part_is_taken_from_it() -> None:
    rows = tuple(LongStep(step=n, beyond_s=0.1, parts_s={"optimizer": 0.1}, gc_s=0.0) for n in (4, 9))
    host = dataclasses.replace(
        activity(input=0.01, forward=0.02, backward=0.03, optimizer=0.03),
        step_times_s=[0.08] * 10,
        long_steps=rows,
    )
    events = _events(0.02)
    waterfall = step_waterfall(make_configuration(ON_CPU, STEP_S), None, (host,), events=events)
    assert waterfall is not None
    assert waterfall.time_s(waterfalls.OPTIMIZER) == pytest.approx(0.01)
    assert waterfall.time_s(waterfalls.REST) == pytest.approx(0.01)
