"""Activity read from records: per step, and unknown where a record has nothing."""

import pytest

from scalescope.analysis.training.activity import RankActivity, activities_of, activity_of
from scalescope.results.result import RankRecord
from tests.builders.results import make_result, make_trial

STEPS = 4


def _record(**stored: object) -> RankRecord:
    times = {"step_time_s": [0.1] * STEPS}
    samples = {**times, **stored.pop("samples", {})}  # type: ignore[dict-item]
    return RankRecord(rank=1, host="a", device="cpu", placement="", samples=samples, **stored)  # type: ignore[arg-type]


def test_an_old_record_tells_nothing() -> None:
    activity = activity_of(_record())
    assert activity == RankActivity(rank=1, step_times_s=[0.1] * STEPS)


def test_pauses_of_the_collector_are_per_step() -> None:
    counters = {"gc/pause_s": 0.2, "gc/longest_s": 0.15, "gc/collections_0": 9, "gc/collections_2": 1}
    garbage = activity_of(_record(counters=counters)).garbage
    assert garbage is not None
    assert (garbage.pause_s, garbage.longest_s, garbage.collections) == (0.05, 0.15, (9, 0, 1))


def test_calls_of_the_allocator_are_per_step_and_bytes_are_not() -> None:
    counters = {
        "allocator/retries": 8,
        "allocator/device_allocations": 2,
        "allocator/reserved_bytes": 100,
        "allocator/inactive_split_bytes": 25,
    }
    calls = activity_of(_record(counters=counters)).allocator
    assert calls is not None
    assert (calls.retries, calls.allocations, calls.releases) == (2.0, 0.5, None)
    assert calls.fragmented == pytest.approx(0.25)


def test_compilations_with_their_lines() -> None:
    counters = {"compile/inside_s": 2.0, "compile/recompilations_inside": 3, "compile/given_up": 1}
    tables = {
        "graph_breaks": [{"reason": "r", "file": "m.py", "line": 3, "function": "f", "count": 2}, {}],
        "recompilations": [{"reason": "s", "function": "g", "file": "n.py", "line": 5, "in_window": 1}],
    }
    compiler = activity_of(_record(counters=counters, tables=tables)).compiler
    assert compiler is not None
    assert (compiler.inside_s, compiler.recompilations_inside, compiler.given_up) == (0.5, 3, 1)
    assert [each.location for each in compiler.graph_breaks] == ["m.py:3", ""]
    (again,) = compiler.recompilations
    assert (again.location, again.in_window, again.time_s) == ("n.py:5", True, 0.0)


def test_work_and_long_steps() -> None:
    row = {"step": 2, "beyond_s": 0.5, "optimizer_beyond_s": 0.4, "gc_s": 0.1}
    activity = activity_of(
        _record(
            counters={"work/elements": 12.0, "work/tokens": 10.0, "work/variation": 0.1},
            samples={"work/elements": [10.0, 14.0, 10.0, 14.0]},
            tables={"long_steps": [row]},
        )
    )
    assert activity.work is not None and activity.long_steps is not None
    assert (activity.work.tokens, activity.work.by_step[1]) == (10.0, 14.0)
    (long,) = activity.long_steps
    assert (long.step, long.parts_s, long.gc_s) == (2, {"optimizer": 0.4}, 0.1)


def test_every_launch_of_the_trial_has_its_ranks() -> None:
    trial, other = make_trial(world_size=2), make_trial(world_size=1)
    results = [
        make_result(trial, [[0.1], [0.2]]),
        make_result(other, [[0.5]]),
        make_result(trial, [[0.3], [0.4]], launch=1),
    ]
    launches = activities_of(results, trial)
    times = [[list(activity.step_times_s) for activity in ranks] for ranks in launches]
    assert times == [[[0.1], [0.2]], [[0.3], [0.4]]]
