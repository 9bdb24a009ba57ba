"""The traces of a job's ranks together: who waits for whom, and what exchanges take without waiting."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from scalescope.analysis.trace.job import CHANGING, SAME, JobTrace, Known
from scalescope.results.traces.collectives import Exchange, Group
from tests.builders.rank_traces import changed, exchange, job_of, meeting_job, rank_trace, step

LATE = [[0.0] * 4, [0.0] * 4, [0.02] * 4]  # rank 2, by 20 ms in each step
ALL_FOUR = Group(name="0", description="default_pg", size=4, ranks=(0, 1, 2, 3))


def exchanging(*ranks: Sequence[Exchange], **known: Any) -> JobTrace:
    """Ranks with these exchanges in one step."""
    traces = (
        rank_trace(rank, step(exposed_s=0.05), ranks=len(ranks), exchanges=tuple(listed), **known)
        for rank, listed in enumerate(ranks)
    )
    return job_of(*traces)


# ---- Waiting


def test_where_all_ranks_were_read_waiting_is_known() -> None:
    job = meeting_job(LATE)
    waits = job.waiting
    assert (waits.known, job.is_complete) == ("all", True)
    assert waits.by_rank == pytest.approx({0: 0.02, 1: 0.02, 2: 0.0})
    assert waits.waiting_s == pytest.approx(0.04 / 3)
    assert waits.by_step == pytest.approx((0.04 / 3,) * 4)
    assert (waits.pattern, waits.late_ranks) == (SAME, (2,))
    assert waits.late_s == pytest.approx({0: 0.0, 1: 0.0, 2: 0.02})
    assert (waits.delay_s, waits.late_share) == pytest.approx((0.02, 1.0))


@pytest.mark.parametrize("groups", [(), (ALL_FOUR,)])
def test_some_ranks_tell_how_long_others_wait_at_least(groups: tuple[Group, ...]) -> None:
    name = ALL_FOUR.name if groups else ""
    job = meeting_job([*LATE, [0.03] * 4], ranks=4, groups=groups, group=name)
    assert (job.waiting.known, job.waiting.late_ranks) == ("all", (2, 3))
    some = job_of(*job.ranks[:3])
    assert (some.waiting.known, some.is_complete, some.world_size) == ("bounds", False, 4)
    assert some.waiting.by_rank == pytest.approx({0: 0.02, 1: 0.02, 2: 0.0})
    unknown = job_of(*(dataclasses.replace(trace, world_size=None) for trace in meeting_job(LATE).ranks))
    assert unknown.waiting.known == "bounds"


def test_one_rank_tells_nothing_of_waiting() -> None:
    job = job_of(meeting_job(LATE).ranks[0])
    assert (job.waiting.known, job.waiting.waiting_s, job.meetings) == ("none", None, [])
    assert [kind.transfer_s for group in job.traffic for kind in group.traffic] == [None]


@pytest.mark.parametrize(
    ("late_s", "pattern"),
    [
        ([[0.02, 0.0, 0.0, 0.02], [0.0, 0.02, 0.0, 0.0], [0.0, 0.0, 0.02, 0.0]], CHANGING),
        ([[0.0] * 4, [0.0] * 4, [0.04, 0.0, 0.0, 0.0]], CHANGING),  # in one step only
        ([[0.0] * 16, [0.0, 0.018] * 8, [0.01] * 16], CHANGING),  # always late, but it waits too
        ([[0.0] * 4, [0.0] * 4, [0.001] * 4], None),  # too little to mention
        ([[0.0] * 4, [0.001] * 4, [0.02, 0.03, 0.02, 0.01]], SAME),
    ],
    ids=["in turn", "once", "two", "jitter", "one"],
)
def test_only_a_rank_that_others_wait_for_in_every_step_is_the_late_one(
    late_s: Sequence[Sequence[float]], pattern: str | None
) -> None:
    waits = meeting_job(late_s).waiting
    assert waits.pattern == pattern
    assert waits.late_ranks == ((2,) if pattern == SAME else ())


@pytest.mark.parametrize(
    ("late_s", "late"),
    [
        ([*[[0.0] * 4] * 4, *[[0.02] * 4] * 4], (4, 5, 6, 7)),  # a slow node
        ([[0.0] * 4, [0.02] * 4, [0.0] * 4, [0.0] * 4, [0.019] * 4], (1, 4)),
        ([[0.0] * 4, [0.02] * 4, [0.0] * 4, [0.0] * 4, [0.004] * 4], (1,)),  # it waits as well
        ([[0.02] * 4, [0.02] * 4, [0.02] * 4, [0.0] * 4], ()),  # one is early, which costs nothing
        ([*[[0.0] * 4] * 3, [0.02] * 4, [0.02, 0.0, 0.02, 0.02]], (3,)),  # in all steps but one
    ],
    ids=["node", "two", "one", "early", "most steps"],
)
def test_several_ranks_are_late_together(late_s: Sequence[Sequence[float]], late: tuple[int, ...]) -> None:
    assert meeting_job(late_s).waiting.late_ranks == late


def test_waiting_that_compute_hides_costs_nothing() -> None:
    job = exchanging([exchange(0.03, exposed_s=0.01)], [exchange(0.005, exposed_s=0.005)])
    assert job.waiting.by_rank == pytest.approx({0: 0.005, 1: 0.0})
    assert exchanging([exchange(0.03, exposed_s=0.004)], [exchange(0.005)]).waiting.waiting_s == 0.0


@pytest.mark.parametrize(
    ("first", "second", "known", "matched"),
    [
        ([exchange()], [exchange(), exchange()], "none", 0),  # counts differ
        ([exchange(kind="broadcast")], [exchange(kind="broadcast")], "none", 0),  # a root leaves early
        ([exchange(group="0"), exchange(group="0", kind="all_gather")],
         [exchange(group="0", kind="all_gather"), exchange(group="0")], "none", 0),
        ([exchange(), exchange(kind="all_gather")], [exchange(kind="all_gather"), exchange()], "all", 2),
        ([exchange(), exchange(kind="barrier")], [exchange()], "bounds", 1),
    ],
    ids=["counts", "rooted", "order of one group", "order of unnamed groups", "one has more"],
)  # fmt: skip
def test_only_exchanges_that_correspond_are_compared(
    first: list[Exchange], second: list[Exchange], known: Known, matched: int
) -> None:
    groups = (Group(name="0", size=2, ranks=(0, 1)),)
    job = exchanging(first, second, groups=groups)
    assert (job.waiting.known, len(job.meetings)) == (known, matched)


def test_ranks_meet_in_the_steps_that_both_recorded() -> None:
    job = meeting_job([[0.0, 0.0], [0.0, 0.01]])
    job = changed(changed(job, 0, step_names=("3", "4")), 1, step_names=("4", "5"))
    (meeting,) = job.meetings
    assert meeting.times_s == pytest.approx({0: 0.02, 1: 0.01})  # step 4: the second of rank 0
    assert job.waiting.known == "bounds"


# ---- Process groups


def mesh(size_bytes: float = 1e6) -> JobTrace:
    """Four ranks: tensor parallel (0, 1) and (2, 3), data parallel (0, 2) and (1, 3); rank 3 is late by 20 ms
    for its tensor group, which makes rank 2 late by 20 ms for its data group."""
    members = {"tp": ((0, 1), (2, 3)), "dp": ((0, 2), (1, 3))}
    late_s = {"tp": (0.0, 0.0, 0.0, 0.02), "dp": (0.0, 0.0, 0.02, 0.02)}
    traces = []
    for rank in range(4):
        groups, listed = [], []
        for name, pairs in members.items():
            ranks = next(pair for pair in pairs if rank in pair)
            last_s = max(late_s[name][each] for each in ranks)
            time_s = last_s - late_s[name][rank] + (0.002 if name == "tp" else 0.008)
            groups.append(Group(name=name, description=f"mesh_{name}", size=2, ranks=ranks))
            listed.append(exchange(time_s, group=name, size_bytes=size_bytes))
        exposed_s = sum(each.time_s for each in listed)
        traces.append(
            rank_trace(
                rank, step(exposed_s=exposed_s), ranks=4, groups=tuple(groups), exchanges=tuple(listed)
            )
        )
    return job_of(*traces)


def test_ranks_of_a_group_are_compared_with_each_other_alone() -> None:
    job = mesh()
    assert sorted(sorted(meeting.times_s) for meeting in job.meetings) == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert job.waiting.known == "all"
    assert job.waiting.by_rank == pytest.approx({0: 0.02, 1: 0.02, 2: 0.02, 3: 0.0})
    assert job.waiting.late_ranks == (3,)  # rank 2 was late as well, but it waited itself


def test_dimensions_of_equal_size_are_told_apart() -> None:
    data, tensor = mesh().traffic
    assert [(row.dimension, row.size, row.count, row.ranks) for row in (data, tensor)] == [
        ("data", 2, 2, None),
        ("tensor", 2, 2, None),
    ]
    times_s = [
        (kind.time_s, kind.transfer_s, kind.waiting_s) for row in (data, tensor) for kind in row.traffic
    ]
    assert times_s == [pytest.approx((0.018, 0.008, 0.010)), pytest.approx((0.007, 0.002, 0.005))]


@pytest.mark.parametrize(
    ("kind", "factor"), [("all_reduce", 1.5), ("all_gather", 0.75), ("barrier", None), ("broadcast", 1.0)]
)
def test_bandwidth_is_that_of_the_shortest_time(kind: str, factor: float | None) -> None:
    late_s = [[0.0] * 2, [0.01] * 2, [0.01] * 2, [0.01] * 2]
    job = meeting_job(late_s, kind=kind, group="0", groups=(ALL_FOUR,), size_bytes=2e6)
    ((row,),) = [group.traffic for group in job.traffic]
    moving_s = 0.01 if kind != "broadcast" else row.time_s  # its ranks leave at different times
    assert row.per_step == 1.0
    assert row.size_bytes == 2e6
    assert row.algbw == pytest.approx(2e6 / moving_s)
    assert row.busbw == (None if factor is None else pytest.approx(factor * 2e6 / moving_s))


def test_bandwidth_needs_all_sizes() -> None:
    job = exchanging([exchange(size_bytes=1e6)], [exchange()])
    ((row,),) = [group.traffic for group in job.traffic]
    assert (row.size_bytes, row.algbw, row.busbw) == (None, None, None)


# ---- The job


def test_a_step_is_the_mean_over_ranks_and_its_parts_add_up() -> None:
    first = rank_trace(0, step(0.1, exposed_s=0.02, overlap_s=0.06), step(0.12, idle_host_s=0.01))
    second = rank_trace(1, step(0.1, copies_s=0.03), step(0.14), step(0.5))
    job = job_of(first, second)
    assert job.step_times_s == pytest.approx([0.1, 0.13])  # steps that all ranks recorded
    assert sum(job.breakdown.values()) == pytest.approx(job.step_s)
    assert job.breakdown["exposed_s"] == pytest.approx(0.005)
    assert job.overlap == pytest.approx(0.06 / 0.08)
    assert job_of(rank_trace()).overlap is None


def test_traces_without_a_rank_take_the_free_numbers() -> None:
    traces = [rank_trace(rank, file=f"file{number}") for number, rank in enumerate([None, 0, 3, 3, None])]
    numbered = job_of(*traces).numbered
    assert list(numbered) == [0, 1, 2, 3, 4]
    assert (numbered[0].file, numbered[3].file) == ("file1", "file2")
