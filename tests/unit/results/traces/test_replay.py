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


SENT = launch(0.0, 8.0, "compute", stream=COMMUNICATION)
LONG_SENT = launch(0.0, 15.0, "compute", stream=COMMUNICATION)
UPDATE = launch(0.0, 2.0, COMMUNICATION)
LAUNCHING = replay_of(call("launch", 3.0, 2.0, kernel_s=1.0, stream="compute"))
PAUSING = replay_of(launch(1.0, 10.0), delays=LaunchDelays(latency_s=0.0, pause_s=0.5))
LATE = replay_of(
    launch(2.0, 10.0), call("wait", call_s=1.0), delays=LaunchDelays(latency_s=0.25, pause_s=0.0)
)
SLOW_HOST = replay_of(launch(8.0, 10.0), launch(8.0, 1.0), call("wait"))
ALLOCATING = replay_of(launch(2.0, 10.0), call("allocation", call_s=3.0))
FED = replay_of(call("launch", 2.0, input_s=30.0, kernel_s=10.0, stream="compute"))
COPIED = replay_of(launch(2.0, 10.0), call("input_wait", call_s=1.0))
AS_IT_WAS = Changes()
WITHOUT_INPUT = Changes(input=False)


@pytest.mark.parametrize(
    ("replay", "factor", "changes", "step_s"),
    [
        # Where the GPU is busy the host does not matter; where the host is slow it decides.
        (GPU_BOUND, 0.02, AS_IT_WAS, 20.0),
        (GPU_BOUND, 1.5, FAST_HOST, 20.0),
        (HOST_BOUND, 1.0, AS_IT_WAS, 20.0),
        (HOST_BOUND, 0.5, AS_IT_WAS, 10.0),
        (HOST_BOUND, 1.0, FAST_HOST, 2.0),
        # The time of a launch is the host's; pauses of the GPU stay with any host.
        (LAUNCHING, 1.0, AS_IT_WAS, 5.0),
        (LAUNCHING, 0.5, AS_IT_WAS, 2.5),
        (PAUSING, 1.0, FAST_HOST, 10.5),
        # 2 until the launch, 0.25 until it begins, 10 on the GPU, 1 until the host notices.
        (LATE, 1.0, AS_IT_WAS, 13.25),
        (WAITING, 1.0, AS_IT_WAS, 13.0),
        (WAITING, 1.0, WITHOUT_WAITS, 10.0),
        (WAITING, 0.5, AS_IT_WAS, 1.0 + 10.0 + 1.0),  # a wait takes as long on any host
        (SLOW_HOST, 1.0, AS_IT_WAS, 8.0 + 10.0 + 1.0),
        (SLOW_HOST, 1.0, WITHOUT_WAITS, 16.0),
        (ALLOCATING, 1.0, AS_IT_WAS, 15.0),
        (ALLOCATING, 1.0, WITHOUT_WAITS, 15.0),
        (ALLOCATING, 1.0, Changes(allocations=False), 10.0),
        # Waiting for input does not depend on the speed of the host; a copied batch is input too.
        (FED, 1.0, AS_IT_WAS, 32.0),
        (FED, 0.5, AS_IT_WAS, 31.0),
        (FED, 1.0, FAST_HOST, 30.0),
        (FED, 1.0, WITHOUT_INPUT, 10.0),
        (COPIED, 1.0, WITHOUT_WAITS, 13.0),
        (COPIED, 1.0, WITHOUT_INPUT, 10.0),
        # Streams run at the same time and wait for what they follow; a wait is for all streams.
        (replay_of(launch(0.0, 10.0), SENT, UPDATE), 1.0, AS_IT_WAS, 20.0),
        (replay_of(launch(0.0, 10.0), SENT, launch(0.0, 10.0), UPDATE), 1.0, AS_IT_WAS, 22.0),
        (replay_of(launch(0.0, 10.0), LONG_SENT, launch(0.0, 10.0), UPDATE), 1.0, AS_IT_WAS, 27.0),
        (replay_of(launch(5.0, 10.0), SENT, call("wait")), 1.0, AS_IT_WAS, 23.0),
    ],
)
def test_calls_run_again_take_what_is_calculated_by_hand(
    replay: Replay, factor: float, changes: Changes, step_s: float
) -> None:
    assert taken(replay, factor, changes) == pytest.approx(step_s)


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
