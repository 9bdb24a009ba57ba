"""The timeline of a pipeline: the closed formula where it applies, and what it never beats."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.analysis.prediction.pipelines import simulate_pipeline, stages_of
from scalescope.analysis.prediction.profiles import RankProfile
from scalescope.analysis.prediction.setup import Fitted, RankLayout, Setup, StepTimeline
from scalescope.errors import BadInput
from tests.builders.profiles import MIB, PerMib, profile_of, profiles, unit

SCHEDULES = ["gpipe", "1f1b"]


def setup_of(stages: int, micro_batches: int, schedule: str) -> Setup:
    return Setup(world_size=stages, strategy="pipeline", micro_batches=micro_batches, schedule=schedule)


def simulated(profile: RankProfile, per_mib: float, setup: Setup) -> StepTimeline:
    return simulate_pipeline(profile, PerMib(per_mib), setup, Fitted())


def even(stages: int, activation_mib: float = 0.0) -> RankProfile:
    return profile_of(*[unit("block", 1.0, 2.0, activation_mib=activation_mib)] * stages, optimizer_s=0.0)


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=20)
@given(stages=st.integers(2, 8), more=st.integers(0, 12))
def test_the_closed_formula(schedule: str, stages: int, more: int) -> None:
    """(m + p - 1)(f + b); the bubble is (p - 1)/m of the compute."""
    micro_batches = stages + more
    profile = even(stages)
    line = simulated(profile, 0.0, setup_of(stages, micro_batches, schedule))
    assert line.step_s == pytest.approx(profile.input_s + (micro_batches + stages - 1) * 3.0)
    assert line.bubble_s == pytest.approx((stages - 1) / micro_batches * micro_batches * 3.0)
    assert line.exposed_s == 0.0


def test_two_stages_by_hand() -> None:
    line = simulated(even(2, activation_mib=1.0), 0.5, setup_of(2, 2, "gpipe"))
    computed = [
        (event.name, event.begin_s - 0.5, event.end_s - 0.5)
        for event in line.events
        if event.name in ("forward", "backward")
    ]
    # A transfer begins when its receiver asks for it. The second stage: forward from 1.5 and 3.0, backward
    # from 4.0 and 6.0.
    assert computed == [
        ("forward", 0.0, 1.0),
        ("forward", 1.0, 2.0),
        ("backward", 6.5, 8.5),
        ("backward", 9.0, 11.0),
    ]
    assert line.exposed_s == pytest.approx(4 * 0.5)
    assert [event.lane for event in line.events].count(
        "communication"
    ) == 4  # each micro-batch there and back
    line = simulated(even(2, activation_mib=1.0), 0.5, setup_of(2, 2, "1f1b"))
    backward = [(event.begin_s - 0.5, event.end_s - 0.5) for event in line.events if event.name == "backward"]
    # The second stage: forward from 1.5, backward from 2.5 to 4.5; then it sends back and receives at once.
    assert backward == [(5.0, 7.0), (8.5, 10.5)]


def test_each_stage_updates_its_parameters() -> None:
    profile = profile_of(unit("a", 1.0, 2.0, mib=1.0), unit("b", 1.0, 2.0, mib=3.0), optimizer_s=4.0)
    line = simulated(profile, 0.0, setup_of(2, 1, "gpipe"))
    assert line.step_s == pytest.approx(0.5 + 6.0 + 1.0)  # the first stage ends last; its share is a quarter


def test_stages_between_nodes_use_the_other_network() -> None:
    times = PerMib(0.5)
    setup = dataclasses.replace(setup_of(4, 4, "1f1b"), layout=RankLayout(ranks_per_node=2))
    simulate_pipeline(even(4, activation_mib=1.0), times, setup, Fitted())
    assert [(ranks, layout.nodes(2)) for _, _, ranks, layout in times.asked] == [(2, 1), (2, 2), (2, 1)]
    assert {name for name, *_ in times.asked} == {"sendrecv"}


def test_stages_are_balanced_and_the_last_has_what_is_in_no_unit() -> None:
    profile = profile_of(
        unit("first", 0.5, 0.5, mib=0.0),
        unit("a", 1.0, 1.0, activation_mib=1.0),
        unit("relu", 0.5, 0.5, mib=0.0, activation_mib=2.0),
        unit("b", 2.0, 2.0),
    )
    first, second = stages_of(profile, 2)
    assert (first.pass_s, second.pass_s) == (4.0, 4.0)
    assert first.activation_bytes == 2 * MIB
    profile = dataclasses.replace(even(2), forward_s=2.5)
    assert [stage.forward_s for stage in stages_of(profile, 2)] == [1.0, 1.5]


def test_too_few_units_and_unknown_schedules_are_refused() -> None:
    with pytest.raises(BadInput, match="3 units"):
        simulated(even(2), 0.0, setup_of(3, 3, "1f1b"))
    with pytest.raises(BadInput, match="gpipe, 1f1b"):
        simulated(even(2), 0.0, setup_of(2, 2, "zigzag"))


@settings(max_examples=20)
@given(profiles, st.integers(2, 4), st.integers(1, 12), st.sampled_from(SCHEDULES), st.floats(0, 1))
def test_never_faster_than_the_busiest_stage_or_link(
    profile: RankProfile, stages: int, micro_batches: int, schedule: str, per_mib: float
) -> None:
    setup = setup_of(stages, micro_batches, schedule)
    line = simulated(profile, per_mib, setup)
    parts = stages_of(profile, stages)
    busiest_s = max(stage.pass_s for stage in parts) * micro_batches
    through_s = sum(stage.pass_s for stage in parts)
    link_s = max(stage.activation_bytes for stage in parts[:-1]) / MIB * per_mib * micro_batches
    assert line.step_s >= max(busiest_s, through_s, link_s) - 1e-9
    assert line.exposed_s >= -1e-9 and line.bubble_s >= 0.0
    ends = [event.end_s for event in line.events]
    assert max(ends) <= line.step_s + 1e-9
