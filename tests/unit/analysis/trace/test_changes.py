"""Two recordings of one job: what became slower, what appeared and what vanished."""

import pytest

from scalescope.analysis.trace.changes import Change, compare_jobs
from tests.builders.rank_traces import alone, exchange, operation, step


def by_name(changes: tuple[Change, ...]) -> dict[str, Change]:
    return {change.name: change for change in changes}


def test_what_changed_most_comes_first() -> None:
    before = alone(step(0.1, idle_host_s=0.02, copies_s=0.01))
    after = alone(step(0.13, idle_host_s=0.055, copies_s=0.0))
    parts = compare_jobs(before, after).parts
    assert [part.name for part in parts[:3]] == ["idle_host_s", "copies_s", "compute_s"]
    assert [part.more_s for part in parts[:3]] == pytest.approx([0.035, -0.01, 0.005])


def test_operations_are_matched_by_name_and_shapes() -> None:
    before = alone(
        operations=(
            operation("aten::mm", "[8,8] [8,8]", line="a.py(1): f", gpu_s=0.002, per_step=4.0),
            operation("aten::mm", "[8,8] [8,8]", line="a.py(2): f", gpu_s=0.003, per_step=6.0),
            operation("aten::gelu", gpu_s=0.004),
        )
    )
    after = alone(
        operations=(
            operation("aten::mm", "[8,8] [8,8]", gpu_s=0.011, per_step=10.0),
            operation("aten::mm", "[9,9] [9,9]", gpu_s=0.001, per_step=2.0),
        )
    )
    found = compare_jobs(before, after).operations
    assert [change.name for change in found] == ["aten::mm [8,8] [8,8]", "aten::gelu", "aten::mm [9,9] [9,9]"]
    slower, vanished, appeared = found
    assert (slower.before_s, slower.after_s) == pytest.approx((0.005, 0.011))
    assert (slower.before_count, slower.after_count) == (10.0, 10.0)
    assert (vanished.before_s, vanished.after_s, vanished.more_s) == (0.004, None, -0.004)
    assert (appeared.before_s, appeared.before_count, appeared.after_count) == (None, None, 2.0)


def test_on_the_cpu_operations_take_the_time_of_the_host() -> None:
    rows = [operation(gpu_s=None, host_s=host_s) for host_s in (0.01, 0.03)]
    jobs = [alone(on_gpu=False, operations=(row,)) for row in rows]
    (change,) = compare_jobs(*jobs).operations
    assert change.more_s == pytest.approx(0.02)


def test_exchanges_are_matched_by_kind_and_group() -> None:
    before = alone(step(), ranks=2, exchanges=(exchange(0.01),))
    after = alone(
        step(), ranks=2, exchanges=(exchange(0.01), exchange(0.02), exchange(0.005, kind="all_gather"))
    )
    found = by_name(compare_jobs(before, after).exchanges)
    reduced, gathered = (found[f"{kind} over 2 ranks, all ranks"] for kind in ("all-reduce", "all-gather"))
    assert (reduced.more_s, reduced.before_count, reduced.after_count) == (pytest.approx(0.02), 1.0, 2.0)
    assert (gathered.before_s, gathered.after_s) == (None, 0.005)


def test_noise_is_how_far_steps_differ_by_themselves() -> None:
    steady, varied = alone(step(0.1), step(0.1)), alone(step(0.08), step(0.12))
    assert compare_jobs(steady, steady).noise_s == 0.0
    assert compare_jobs(steady, varied).noise_s == pytest.approx(0.04)  # twice the error of the mean
    assert compare_jobs(alone(step(0.1)), steady).noise_s == 0.0  # one step tells nothing
