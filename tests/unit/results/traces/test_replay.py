"""Replays: recorded calls run again take the time that is calculated by hand, and less without a cost."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.results.traces.replay import CallKind, Changes, HostCall, LaunchDelays, Replay

AT_ONCE = LaunchDelays(latency_s=0.0, pause_s=0.0)
WITHOUT_WAITS = Changes(waits=False)
FAST_HOST = Changes(waits=False, allocations=False, host=False)
COMMUNICATION = "communication"


def call(
    kind: CallKind, before_s: float = 0.0, call_s: float = 0.0, *, input_s: float = 0.0, **more: object
) -> HostCall:
    return HostCall(kind=kind, before_s=before_s, waited_input_s=input_s, call_s=call_s, **more)  # type: ignore[arg-type]


def launch(before_s: float, kernel_s: float, *follows: str, stream: str = "compute") -> HostCall:
    return call("launch", before_s, kernel_s=kernel_s, stream=stream, follows=follows)


def replay_of(*step: HostCall, steps: int = 5, delays: LaunchDelays = AT_ONCE) -> Replay:
    """The same calls in every step."""
    calls = [_in_step(recorded, number) for number in range(steps) for recorded in step]
    return Replay(calls=calls, delays=delays)


def _in_step(recorded: HostCall, number: int) -> HostCall:
    return HostCall(
        kind=recorded.kind,
        before_s=recorded.before_s,
        waited_input_s=recorded.waited_input_s,
        call_s=recorded.call_s,
        kernel_s=recorded.kernel_s,
        stream=recorded.stream,
        follows=recorded.follows,
        step=number,
    )


def taken(replay: Replay, factor: float = 1.0, changes: Changes | None = None) -> float:
    step_s = replay.step_s(factor, changes)
    assert step_s is not None
    return step_s


GPU_BOUND = replay_of(launch(1.0, 10.0), launch(1.0, 10.0))
HOST_BOUND = replay_of(launch(10.0, 1.0), launch(10.0, 1.0))
WAITING = replay_of(launch(2.0, 10.0), call("wait", call_s=1.0))


@pytest.mark.parametrize("factor", [0.02, 1.5])
def test_where_the_gpu_is_busy_the_host_does_not_matter(factor: float) -> None:
    assert taken(GPU_BOUND, factor) == pytest.approx(20.0)
    assert taken(GPU_BOUND, factor, FAST_HOST) == pytest.approx(20.0)


def test_where_the_host_is_slow_it_decides() -> None:
    assert taken(HOST_BOUND) == pytest.approx(20.0)
    assert taken(HOST_BOUND, 0.5) == pytest.approx(10.0)
    assert taken(HOST_BOUND, 1.0, FAST_HOST) == pytest.approx(2.0)


def test_the_time_of_a_launch_is_the_host_s() -> None:
    replay = replay_of(call("launch", 3.0, 2.0, kernel_s=1.0, stream="compute"))
    assert taken(replay) == pytest.approx(5.0)
    assert taken(replay, 0.5) == pytest.approx(2.5)


def test_pauses_of_the_gpu_stay_with_any_host() -> None:
    delays = LaunchDelays(latency_s=0.0, pause_s=0.5)
    assert taken(replay_of(launch(1.0, 10.0), delays=delays), 1.0, FAST_HOST) == pytest.approx(10.5)


def test_after_a_wait_the_gpu_begins_late() -> None:
    """2 until the launch, 0.25 until it begins, 10 on the GPU, 1 until the host notices."""
    replay = replay_of(
        launch(2.0, 10.0), call("wait", call_s=1.0), delays=LaunchDelays(latency_s=0.25, pause_s=0.0)
    )
    assert taken(replay) == pytest.approx(13.25)


def test_without_waits_a_step_saves_what_they_cost() -> None:
    assert taken(WAITING) == pytest.approx(13.0)
    assert taken(WAITING, 1.0, WITHOUT_WAITS) == pytest.approx(10.0)


def test_a_wait_takes_as_long_on_any_host() -> None:
    assert taken(WAITING, 0.5) == pytest.approx(1.0 + 10.0 + 1.0)


def test_without_waits_a_slow_host_is_still_slow() -> None:
    replay = replay_of(launch(8.0, 10.0), launch(8.0, 1.0), call("wait"))
    assert taken(replay) == pytest.approx(8.0 + 10.0 + 1.0)
    assert taken(replay, 1.0, WITHOUT_WAITS) == pytest.approx(16.0)


def test_without_allocations_a_step_saves_what_they_cost() -> None:
    replay = replay_of(launch(2.0, 10.0), call("allocation", call_s=3.0))
    assert taken(replay) == pytest.approx(15.0)
    assert taken(replay, 1.0, WITHOUT_WAITS) == pytest.approx(15.0)
    assert taken(replay, 1.0, Changes(allocations=False)) == pytest.approx(10.0)


def test_waiting_for_input_does_not_depend_on_the_speed_of_the_host() -> None:
    replay = replay_of(call("launch", 2.0, input_s=30.0, kernel_s=10.0, stream="compute"))
    assert taken(replay) == pytest.approx(32.0)
    assert taken(replay, 0.5) == pytest.approx(31.0)
    assert taken(replay, 1.0, FAST_HOST) == pytest.approx(30.0)
    assert taken(replay, 1.0, Changes(input=False)) == pytest.approx(10.0)


def test_a_wait_for_a_copied_batch_is_part_of_the_input() -> None:
    replay = replay_of(launch(2.0, 10.0), call("input_wait", call_s=1.0))
    assert taken(replay, 1.0, WITHOUT_WAITS) == pytest.approx(13.0)
    assert taken(replay, 1.0, Changes(input=False)) == pytest.approx(10.0)


def test_streams_run_at_the_same_time_and_wait_for_what_they_follow() -> None:
    sent = launch(0.0, 8.0, "compute", stream=COMMUNICATION)
    update = launch(0.0, 2.0, COMMUNICATION)
    assert taken(replay_of(launch(0.0, 10.0), sent, update)) == pytest.approx(20.0)
    assert taken(replay_of(launch(0.0, 10.0), sent, launch(0.0, 10.0), update)) == pytest.approx(22.0)
    long_sent = launch(0.0, 15.0, "compute", stream=COMMUNICATION)
    assert taken(replay_of(launch(0.0, 10.0), long_sent, launch(0.0, 10.0), update)) == pytest.approx(27.0)


def test_a_wait_is_for_all_streams() -> None:
    sent = launch(0.0, 8.0, "compute", stream=COMMUNICATION)
    replay = replay_of(launch(5.0, 10.0), sent, call("wait"))
    assert taken(replay) == pytest.approx(23.0)


@pytest.mark.parametrize("steps", [0, 1])
def test_fewer_than_two_steps_have_no_length(steps: int) -> None:
    replay = replay_of(launch(1.0, 1.0), steps=steps)
    assert replay.step_s(1.0) is None
    assert replay.fitted_factor(1.0) is None


@pytest.mark.parametrize("factor", [0.1, 1.4])
@pytest.mark.parametrize("replay", [HOST_BOUND, replay_of(launch(9.0, 5.0), call("wait", call_s=1.0))])
def test_the_factor_of_the_host_is_recovered(replay: Replay, factor: float) -> None:
    fitted = replay.fitted_factor(taken(replay, factor))
    assert fitted == pytest.approx(factor, rel=0.1)


def test_where_kernels_alone_take_longer_the_factor_is_the_least() -> None:
    assert GPU_BOUND.fitted_factor(15.0) == pytest.approx(0.02)


def test_a_gpu_bound_step_is_fitted_by_every_host_that_keeps_up() -> None:
    fitted = GPU_BOUND.fitted_factor(20.0)
    assert fitted == pytest.approx(1.5, rel=1e-3)
    assert taken(GPU_BOUND, fitted or 0.0) == pytest.approx(20.0, rel=0.01)


CALLS = st.one_of(
    st.builds(launch, st.integers(0, 20).map(float), st.integers(0, 20).map(float)),
    st.builds(call, st.sampled_from(["wait", "allocation", "input_wait"]), st.integers(0, 9).map(float)),
)


@settings(max_examples=30)
@given(st.lists(CALLS, min_size=1, max_size=6), st.floats(0.02, 1.5), st.floats(0.02, 1.5))
def test_a_slower_host_never_makes_a_step_shorter(calls: list[HostCall], left: float, right: float) -> None:
    replay = replay_of(*calls)
    assert taken(replay, min(left, right)) <= taken(replay, max(left, right)) + 1e-9


@settings(max_examples=30)
@given(st.lists(CALLS, min_size=1, max_size=6), st.floats(0.02, 1.5))
def test_less_to_do_never_makes_a_step_longer(calls: list[HostCall], factor: float) -> None:
    replay = replay_of(*calls)
    order = (Changes(), WITHOUT_WAITS, Changes(waits=False, allocations=False), FAST_HOST)
    times_s = [taken(replay, factor, changes) for changes in order]
    assert all(more >= less - 1e-9 for more, less in itertools.pairwise(times_s))
    kernels_s = sum(recorded.kernel_s for recorded in calls)
    assert times_s[-1] >= kernels_s - 1e-9
