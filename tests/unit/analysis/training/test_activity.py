"""What ranks did beside computing, by their records: activity, loaders, and what input adds to a step."""

import pytest

from scalescope.analysis.training.activity import RankActivity, activities_of, activity_of
from scalescope.analysis.training.input import LoaderFacts, input_cost, loading_of
from scalescope.experiment.explanations import with_preloaded_input
from scalescope.results.result import RankRecord
from tests.builders.results import make_configuration, make_result, make_trial

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


# loaders


def record(rank: int = 0, **counters: float | int | str | None) -> RankRecord:
    named = {name.replace("loader__", "loader/"): value for name, value in counters.items()}
    return RankRecord(rank=rank, host="here", device="cpu", placement="", counters=named)


def test_the_rank_that_spends_most_on_a_batch_counts() -> None:
    facts = loading_of([record(0, loader_s=0.3, copy_s=0.1), record(1, loader_s=0.1, copy_s=0.5)])
    assert facts is not None
    assert (facts.rank, facts.wait_s, facts.copy_s) == (1, 0.1, 0.5)


def test_all_that_a_rank_noted_is_read() -> None:
    facts = loading_of(
        [
            record(
                loader_s=0.1, copy_s=0.0, loader__first_batch_s=2.0, loader__prepare_s=0.4,
                loader__collate_s=0.1, loader__cpu_s=0.2, loader__workers=4, loader__prefetch_factor=2,
                loader__pinned=1, loader__persistent=0, loader__restarts=3, loader__cores=8,
                loader__batch_bytes=1000, loader__shm_bytes=9000, loader__shm_free_bytes=2500,
            )
        ]
    )  # fmt: skip
    assert facts is not None
    assert facts.fetch_s == pytest.approx(0.3)
    assert facts.computes == pytest.approx(0.5)
    assert (facts.workers, facts.pinned, facts.persistent, facts.restarts) == (4, True, False, 3)
    assert facts.batches_that_fit == 2
    assert not facts.is_iterable


def test_what_was_not_noted_is_unknown() -> None:
    facts = loading_of([record(loader_s=0.1, copy_s=0.2)])
    assert facts == LoaderFacts(rank=0, wait_s=0.1, copy_s=0.2)
    assert (facts.fetch_s, facts.computes, facts.batches_that_fit) == (None, None, None)
    assert facts.workers_to_hide(0.1) is None
    assert not facts.is_iterable
    facts = loading_of([record(loader_s=0.1, copy_s=0.2, loader__first_batch_s=0.1)])
    assert facts is not None and facts.is_iterable
    assert loading_of([record(parameters=3)]) is None
    assert loading_of([]) is None


def test_as_many_processes_hide_preparing_as_batches_are_used_meanwhile() -> None:
    for batch_s, workers in ((0.1, 4), (0.15, 3), (1.0, 1), (0.0, None)):
        assert LoaderFacts(rank=0, prepare_s=0.4).workers_to_hide(batch_s) == workers
        assert LoaderFacts(rank=0, prepare_s=0.1, process_s=0.4).workers_to_hide(batch_s) == workers


def test_a_command_s_step_has_as_many_batches_as_passes() -> None:
    observed = {"observed/loader": 1, "observed/loader_workers": 0, "loader/process_s": 0.1}
    for passes, workers in ((None, 1), (4, 4)):
        facts = loading_of([record(**observed, **{"observed/micro_batches": passes})])
        assert facts is not None and facts.workers_to_hide(0.1) == workers


# what input adds to a step


LOADED = make_trial(num_workers=0)
FULL = make_configuration(LOADED, 0.100)
PRELOADED = make_configuration(with_preloaded_input(LOADED), 0.060)


def cost(input_s: float | None, *, has_processes: bool = False) -> float:
    host = RankActivity(rank=0, host_s={} if input_s is None else {"input": input_s})
    estimate = input_cost(FULL, PRELOADED, (host,), has_processes=has_processes)
    assert estimate is not None
    return estimate.value


def test_input_costs_what_preloaded_batches_save_but_no_more_than_the_host_spends() -> None:
    assert cost(0.045) == pytest.approx(0.040)
    assert cost(0.001) == pytest.approx(0.001)
    assert cost(0.001, has_processes=True) == pytest.approx(0.040)
    assert cost(None) == pytest.approx(0.040)
    assert input_cost(FULL, FULL, (), has_processes=False) is None
    assert input_cost(FULL, None, (), has_processes=False) is None


def test_input_costs_no_more_than_the_step() -> None:
    uneven = make_configuration(LOADED, 0.050, 0.150)
    nothing = make_configuration(with_preloaded_input(LOADED), 0.001, 0.001)
    estimate = input_cost(uneven, nothing, (), has_processes=True)
    assert estimate is not None
    assert estimate.value == uneven.step_time_s.value
