"""Rules over a job's traces: each is found with what it costs, or not, where its cause is not there."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from scalescope.analysis.trace.job import JobTrace
from scalescope.diagnose import trace_rules as rules
from scalescope.diagnose.finding import Abstention, Diagnosis, Finding
from scalescope.diagnose.trace_rules import Rule, TraceFacts, diagnose
from scalescope.results.traces.collectives import Group
from scalescope.results.traces.job_trace import Stop
from scalescope.results.traces.operations import Chain, Loop, Operation
from tests.builders.facts import abstention, evidence_of, finding
from tests.builders.rank_traces import (
    Step,
    alone,
    changed,
    exchange,
    job_of,
    meeting_job,
    operation,
    rank_trace,
    step,
)

LATE = [[0.0] * 4, [0.0] * 4, [0.02] * 4]  # rank 2, by 20 ms in each step


def result_of(rule: Rule, job: JobTrace) -> Finding | Abstention | None:
    """What a rule makes of a job; None for nothing."""
    results = list(rule(TraceFacts(job=job)))
    assert len(results) <= 1
    return results[0] if results else None


def found(rule: Rule, job: JobTrace) -> Finding:
    return finding(result_of(rule, job))


def rank_of(cause: Finding) -> float | str | None:
    return evidence_of(cause).get("rank")


# ---- Ranks that wait for each other


@pytest.mark.parametrize(
    ("part", "changes", "name", "words"),
    [
        ("compute_s", {}, "slower kernels than other ranks", "the kernels of rank 2"),
        ("compute_s", {"facts": {"kernels_per_step": 103.0}}, "late rank", "it has 103 kernels"),
        ("idle_host_s", {}, "slower host than other ranks", "a host that launches work too late"),
        ("idle_sync_s", {}, "slower host than other ranks", "a host that launches work too late"),
        ("idle_input_s", {}, "late rank", "for samples"),
        ("copies_s", {}, "late rank", "it copies"),
        ("idle_queued_s", {}, "late rank", "was launched and did not run"),
        ("idle_between_s", {}, "late rank", "does not show why"),
    ],
    ids=["kernels", "work", "host", "synchronizing host", "samples", "copies", "held back", "something else"],
)
def test_a_late_rank_costs_what_the_others_wait(
    part: str, changes: Mapping[str, Any], name: str, words: str
) -> None:
    cause = found(rules.waiting, changed(meeting_job(LATE, part=part), 2, **changes))
    assert (cause.rule, rank_of(cause), cause.about) == (name, 2, "rank 2")
    assert words in cause.claim
    assert cause.cost_s == pytest.approx(0.02)
    assert cause.share == pytest.approx(0.02 / 0.11)


def test_a_difference_that_explains_little_of_the_delay_is_not_its_cause() -> None:
    """Rank 2 is late by 19 ms between kernels and by 1 ms of compute."""
    steps = (step(0.11, exposed_s=0.01, idle_between_s=0.019),) * 4
    cause = found(rules.waiting, changed(meeting_job(LATE, part="idle_between_s"), 2, steps=steps))
    assert (cause.rule, rank_of(cause)) == ("late rank", 2)
    assert "does not show why" in cause.claim


def test_the_ranks_of_a_slow_node_are_one_finding() -> None:
    cause = found(rules.waiting, meeting_job([*[[0.0] * 4] * 4, *[[0.02] * 4] * 4]))
    assert (cause.rule, cause.about) == ("slower kernels than other ranks", "ranks 4-7")
    assert [each.value for each in cause.evidence if each.name == "rank"] == [4.0, 5.0, 6.0, 7.0]
    assert cause.cost_s == pytest.approx(0.02)
    assert cause.advice[-1].label.startswith("ranks 4-7 may be one node")


def test_late_ranks_that_do_not_follow_each_other_are_no_node() -> None:
    cause = found(rules.waiting, meeting_job([[0.0] * 4, [0.02] * 4, [0.0] * 4, [0.0] * 4, [0.02] * 4]))
    assert cause.about == "ranks 1,4"
    assert not any("node" in advice.label for advice in cause.advice)


def test_a_rank_without_a_gpu_has_no_kernels_that_are_slow() -> None:
    traces = meeting_job(LATE).ranks
    job = job_of(*(dataclasses.replace(trace, on_gpu=False, facts={}) for trace in traces))
    assert found(rules.waiting, job).rule == "late rank"


def test_waiting_for_a_different_rank_each_time_names_none() -> None:
    job = meeting_job([[0.03, 0.0, 0.0], [0.0, 0.03, 0.0], [0.0, 0.0, 0.03]])
    cause = found(rules.waiting, job)
    assert (cause.rule, rank_of(cause), cause.about) == ("changing late rank", None, "")
    assert cause.cost_s == pytest.approx(0.02)


def test_one_rank_alone_cannot_tell_waiting() -> None:
    one = job_of(meeting_job(LATE).ranks[0])
    assert abstention(result_of(rules.waiting, one)).rule == "waiting"
    assert result_of(rules.waiting, alone()) is None  # nothing is exchanged


def test_little_waiting_is_no_finding() -> None:
    assert result_of(rules.waiting, meeting_job([[0.0] * 4, [0.0] * 4, [0.003] * 4])) is None


# ---- Exchanges

UNEVEN = (10, 10, 10, 30)  # elements for each rank
EVEN = (15, 15, 15, 15)


def dispatching(splits: Sequence[tuple[int, ...] | None], late_s: float = 0.0, **known: Any) -> JobTrace:
    """Four ranks with an all-to-all of 20 ms; the last one is late."""
    job = meeting_job([*[[0.0] * 4] * 3, [late_s] * 4], transfer_s=0.02, kind="all_to_all", **known)
    for rank, split in enumerate(splits):
        listed = tuple(dataclasses.replace(each, splits=split) for each in job.ranks[rank].exchanges)
        job = changed(job, rank, exchanges=listed)
    return job


def test_an_uneven_all_to_all_costs_what_one_rank_has_beyond_the_mean() -> None:
    cause = found(rules.uneven_all_to_all, dispatching([UNEVEN] * 4))  # rank 3 receives 120, the mean is 60
    assert (rank_of(cause), evidence_of(cause)["most ÷ mean"]) == (3, 2.0)
    assert (cause.cost_s, cause.estimated) == (pytest.approx(0.01), True)
    sent = dispatching([(2, 2, 2, 2), (2, 2, 2, 2), (8, 8, 8, 8), (4, 4, 4, 4)])  # rank 2 sends twice as much
    assert rank_of(found(rules.uneven_all_to_all, sent)) == 2


def test_the_rank_with_more_to_work_on_is_not_called_late_too() -> None:
    job = dispatching([UNEVEN] * 4, late_s=0.01)
    assert job.waiting.late_ranks == (3,)
    assert result_of(rules.waiting, job) is None
    cause = found(rules.uneven_all_to_all, job)
    assert cause.cost_s is not None
    assert 0.01 + 0.01 <= cause.cost_s <= job.breakdown["exposed_s"]  # its share of the exchange, and waiting


def test_an_uneven_all_to_all_costs_no_more_than_is_exposed() -> None:
    job = dispatching([(1, 1, 1, 57)] * 4, late_s=0.05)
    assert found(rules.uneven_all_to_all, job).cost_s == pytest.approx(job.breakdown["exposed_s"])


def test_one_rank_tells_what_it_sends_to_each() -> None:
    one = job_of(dispatching([UNEVEN] * 4).ranks[0])
    cause = found(rules.uneven_all_to_all, one)
    assert (rank_of(cause), cause.cost_s) == (None, pytest.approx(0.01))


@pytest.mark.parametrize("splits", [[EVEN] * 4, [(14, 15, 15, 16)] * 4, [None] * 4])
def test_an_even_or_unknown_all_to_all_is_no_finding(splits: Sequence[tuple[int, ...] | None]) -> None:
    assert result_of(rules.uneven_all_to_all, dispatching(splits)) is None


def sending(count: int, time_s: float, size_bytes: float | None = 1024.0, **known: Any) -> JobTrace:
    """One rank of two with many exchanges in its step."""
    listed = (exchange(time_s, size_bytes=size_bytes, **known),) * count
    exposed_s = sum(each.exposed_s for each in listed)
    return job_of(rank_trace(0, step(exposed_s=exposed_s), ranks=2, exchanges=listed))


def test_many_small_collectives_cost_what_nothing_hides() -> None:
    cause = found(rules.small_collectives, sending(60, 200e-6, exposed_s=100e-6))
    assert cause.cost_s == pytest.approx(0.006)
    assert evidence_of(cause)["all-reduces per step"] == 60
    assert found(rules.small_collectives, sending(60, 200e-6, None)).cost_s == pytest.approx(0.012)


@pytest.mark.parametrize(
    "job",
    [sending(40, 200e-6), sending(60, 200e-6, 4e6), sending(60, 400e-6, None), sending(60, 20e-6)],
    ids=["few", "large", "long, of unknown size", "short"],
)
def test_other_collectives_are_not_small(job: JobTrace) -> None:
    assert result_of(rules.small_collectives, job) is None


def test_small_collectives_do_not_count_waiting() -> None:
    """60 of 0.1 ms; one rank waits 10 ms in the first of them."""
    small = (exchange(100e-6, size_bytes=8.0),) * 59
    steps = (step(exposed_s=0.016), step(exposed_s=0.006))
    late = tuple(exchange(time_s, size_bytes=8.0) for time_s in (0.0101, 100e-6))
    traces = [rank_trace(n, steps[n], ranks=2, exchanges=(late[n], *small)) for n in range(2)]
    assert found(rules.small_collectives, job_of(*traces)).cost_s == pytest.approx(0.006)


def test_exposed_communication_is_what_is_neither_waiting_nor_small() -> None:
    cause = found(rules.exposed_communication, sending(2, 0.02, 4e6))
    assert cause.cost_s == pytest.approx(0.04)
    cause = found(rules.exposed_communication, meeting_job(LATE, transfer_s=0.03))
    assert cause.cost_s == pytest.approx(0.03)  # the others wait 20 ms more
    assert result_of(rules.exposed_communication, meeting_job(LATE, transfer_s=0.004)) is None
    assert result_of(rules.exposed_communication, sending(60, 200e-6)) is None


def test_bandwidth_stands_beside_what_is_published_for_the_gpu() -> None:
    group = Group(name="0", size=8, ranks=tuple(range(8)))
    known: dict[str, Any] = {"group": "0", "groups": (group,), "size_bytes": 3e8}
    cause = found(rules.exposed_communication, meeting_job([[0.0] * 4] * 8, transfer_s=0.01, **known))
    assert evidence_of(cause)["bus bandwidth"] == pytest.approx(3e8 / 0.01 * 1.75)
    assert "450" in cause.claim and "published" in cause.claim


def test_exchanges_that_wait_for_others_on_their_stream() -> None:
    job = sending(1, 0.02, queued_s=0.03)
    assert found(rules.queued_collectives, job).cost_s == pytest.approx(0.02)  # no more than is exposed
    assert found(rules.queued_collectives, sending(1, 0.02, queued_s=0.01)).cost_s == pytest.approx(0.01)
    assert result_of(rules.queued_collectives, sending(1, 0.02, queued_s=0.004)) is None


def test_exchanges_on_the_stream_of_the_kernels_cannot_be_hidden() -> None:
    job = sending(2, 0.02, beside_compute=False)
    cause = found(rules.on_compute_stream, job)
    assert (cause.rule, cause.cost_s) == ("communication on the compute stream", pytest.approx(0.04))
    assert result_of(rules.on_compute_stream, sending(2, 0.02)) is None
    on_cpu = changed(job, 0, on_gpu=False)
    assert result_of(rules.on_compute_stream, on_cpu) is None


# ---- One rank's host and GPU


@pytest.mark.parametrize(
    ("rule", "part", "name", "least_s"),
    [
        (rules.synchronizations, "idle_sync_s", "synchronizations", 0.003),
        (rules.input_wait, "idle_input_s", "input", 0.003),
        (rules.copies, "copies_s", "copies", 0.003),
        (rules.held_back, "idle_queued_s", "held back", 0.005),
        (rules.host_bound, "idle_host_s", "host-bound", 0.005),
    ],
)
def test_idle_time_of_one_cause_costs_itself(rule: Rule, part: str, name: str, least_s: float) -> None:
    cause = found(rule, alone(step(**{part: 0.02})))
    assert (cause.rule, cause.cost_s, cause.share) == (name, pytest.approx(0.02), pytest.approx(0.2))
    assert found(rule, alone(step(**{part: 1.01 * least_s}))).cost_s == pytest.approx(1.01 * least_s)
    assert result_of(rule, alone(step(**{part: 0.99 * least_s}))) is None
    only_one = [rank_trace(0, step(), ranks=3), rank_trace(1, step(**{part: 0.05}), ranks=3)]
    assert result_of(rule, job_of(*only_one, rank_trace(2, step(), ranks=3))) is None  # of a late rank


def test_synchronizations_name_what_waits() -> None:
    waits = {"aten::item": 4.0, "cudaStreamSynchronize": 1.0}
    assert evidence_of(found(rules.synchronizations, alone(step(idle_sync_s=0.02), waits=waits))) == waits


def test_copies_from_pageable_memory_are_told_apart() -> None:
    facts = {"pageable_copies_per_step": 2.0}
    assert found(rules.copies, alone(step(copies_s=0.02), facts=facts)).rule == "pageable copies"


def a_loop(short_s: float = 0.0, idle_s: float = 0.0, **known: Any) -> Loop:
    """Eight calls in one."""
    values: dict[str, Any] = {
        "op": "aten::mm",
        "shapes": "[8,8] [8,8]",
        "line": "a.py(1): f",
        "times": 8,
        "per_step": 96.0,
    }
    return Loop(**{**values, "short_s": short_s, "idle_s": idle_s, **known})


def host_limited(idle_s: float = 0.04, recording_s: float = 0.0, **known: Any) -> JobTrace:
    facts = {"kernels_per_step": 4000.0, "kernel_median_s": 4e-6, "recording_s": recording_s}
    return alone(step(idle_host_s=idle_s), facts=facts, **known)


def test_a_host_that_launches_too_late_costs_neither_recording_nor_loops() -> None:
    job = host_limited(recording_s=0.01, loops=(a_loop(idle_s=0.016),))
    cause = found(rules.host_bound, job)
    assert (cause.cost_s, cause.estimated) == (pytest.approx(0.04 - 0.01 - 0.014), True)
    assert evidence_of(cause)["recording of the host's events"] == 0.01
    assert result_of(rules.host_bound, host_limited(recording_s=0.036)) is None
    assert result_of(rules.host_bound, host_limited(loops=(a_loop(idle_s=0.042),))) is None


def test_on_the_cpu_only_much_time_between_operations_is_the_hosts() -> None:
    assert found(rules.host_bound, host_limited(on_gpu=False)).cost_s == pytest.approx(0.04)
    assert result_of(rules.host_bound, host_limited(0.02, on_gpu=False)) is None


def test_a_trace_whose_gpu_idles_under_launched_work_does_not_tell_why() -> None:
    job = alone(step(idle_host_s=0.04, idle_queued_s=0.03))
    assert abstention(result_of(rules.host_bound, job)).rule == "host-bound"


# ---- Steps that are longer than others


def long_steps(*extra_s: float) -> list[Step]:
    return [step(0.1 + each, idle_host_s=each) for each in extra_s]


ONE_LONG = (0.0, 0.0, 0.2, 0.0, 0.0)


@pytest.mark.parametrize(
    ("stops", "name"),
    [
        ((Stop(step=2, name="saving a checkpoint", time_s=0.15),), "pause inside a step"),
        ((Stop(step=2, name="compilation", time_s=0.15),), "compiling step"),
        ((Stop(step=1, name="compilation", time_s=0.15),), "pause inside a step"),  # in another step
        ((Stop(step=2, name="compilation", time_s=0.02),), "pause inside a step"),  # not what took so long
        ((), "pause inside a step"),
    ],
    ids=["checkpoint", "compilation", "elsewhere", "too short", "unknown"],
)
def test_a_long_step_costs_its_excess_on_average(stops: tuple[Stop, ...], name: str) -> None:
    cause = found(rules.pauses, alone(*long_steps(*ONE_LONG), stops=stops))
    assert (cause.rule, cause.cost_s) == (name, pytest.approx(0.2 / 5))
    assert evidence_of(cause) == {"longer than usual": pytest.approx(0.2)}


@pytest.mark.parametrize(
    "extra_s",
    [(0.0, 0.012, 0.0), (*[0.0] * 9, 0.02), (0.2, 0.0), (0.0, 0.02, 0.04, 0.06, 0.08)],
    ids=["little", "little of all", "two steps", "steps that differ"],
)
def test_usual_differences_between_steps_are_no_pauses(extra_s: tuple[float, ...]) -> None:
    assert result_of(rules.pauses, alone(*long_steps(*extra_s))) is None


def test_a_pause_on_one_rank_is_not_waiting_as_well() -> None:
    job = meeting_job([[0.0] * 5, list(ONE_LONG), [0.0] * 5], part="idle_host_s")
    cause = found(rules.pauses, job)
    assert (rank_of(cause), cause.cost_s) == (1, pytest.approx(0.04))
    assert result_of(rules.waiting, job) is None
    both = meeting_job([list(ONE_LONG), list(ONE_LONG), [0.0] * 5], part="idle_host_s")
    assert rank_of(found(rules.pauses, both)) is None


def test_who_waited_for_a_pause_is_not_the_one_that_paused() -> None:
    """Rank 0 pauses at the end of the recording; the others waited for its pause before the recording."""
    usual = [step(0.1, exposed_s=0.01)] * 4
    paused = rank_trace(0, *usual, step(0.3, exposed_s=0.01, idle_host_s=0.2), ranks=3)
    waited = [
        rank_trace(n, step(0.3, exposed_s=0.21, compute_s=0.09 + n * 1e-4), *usual, ranks=3) for n in (1, 2)
    ]
    cause = found(rules.pauses, job_of(paused, *waited))
    assert rank_of(cause) == 0
    assert "while the host launched nothing on rank 0" in cause.claim
    assert rank_of(found(rules.pauses, job_of(*waited))) is None


# ---- Operations


def product(m: int, k: int, n: int, rate: float, calls: float = 10.0, **known: Any) -> Operation:
    """Matrix products at some rate, in FLOP/s."""
    flops = 2.0 * m * k * n * calls
    shapes = f"[{m},{k}] [{k},{n}]"
    return operation("aten::mm", shapes, per_step=calls, flops=flops, gpu_s=flops / rate, **known)


def multiplying(*rows: Operation, **known: Any) -> JobTrace:
    return alone(step(), operations=rows, **{"has_shapes": True, **known})


GOOD = product(4096, 4096, 4096, 5e14)
ODD = product(4096, 768, 50257, 1e14)  # 31.6 ms


def test_a_product_that_does_not_fill_rows_costs_what_comparable_ones_would_save() -> None:
    cause = found(rules.slow_products, multiplying(GOOD, ODD))
    assert ODD.gpu_s is not None
    assert (cause.cost_s, cause.estimated) == (pytest.approx(0.8 * ODD.gpu_s), True)
    assert evidence_of(cause) == {
        "rate": pytest.approx(1e14),
        "rate of comparable products": pytest.approx(5e14),
    }
    assert "50257" in cause.advice[0].label
    even = product(4096, 768, 50304, 1e14)
    assert found(rules.slow_products, multiplying(GOOD, even)).rule == "slow products"  # a fifth of the rate


@pytest.mark.parametrize(
    "rows",
    [
        (GOOD, product(4096, 768, 50257, 3e14)),
        (GOOD, product(4096, 768, 50304, 2e14)),  # not fast, but its shapes are not to blame
        (dataclasses.replace(GOOD, dtype="fp32"), ODD),
        (dataclasses.replace(GOOD, op="aten::convolution"), ODD),
        (product(4096, 65536, 4096, 5e14, 1.0), ODD),  # far larger ones are easier
        (product(1024, 1024, 1024, 5e14), product(8, 4096, 50257, 1e12)),  # that one waits for memory
        (GOOD, product(4096, 768, 50257, 1e14, 0.5)),
        (ODD,),
        (GOOD, operation()),
    ],
    ids=["fast", "even", "format", "convolution", "larger", "intensity", "rare", "alone", "no product"],
)
def test_products_that_none_comparable_surpasses_are_no_finding(rows: Sequence[Operation]) -> None:
    assert result_of(rules.slow_products, multiplying(*rows)) is None


def test_slow_products_need_shapes_and_a_gpu() -> None:
    assert abstention(result_of(rules.slow_products, multiplying(operation(), has_shapes=False)))
    assert result_of(rules.slow_products, multiplying(operation())) is None
    assert result_of(rules.slow_products, multiplying(GOOD, ODD, on_gpu=False)) is None


def looping(*loops: Loop, **known: Any) -> JobTrace:
    return alone(step(), loops=loops, **{"has_stacks": True, "has_shapes": True, **known})


def test_loops_cost_all_calls_but_one() -> None:
    first, second = a_loop(0.008, 0.008), a_loop(0.016, 0.016, times=4, line="b.py(2): g")
    cause = found(rules.batchable_loops, looping(first, second))
    assert (cause.cost_s, cause.estimated) == (pytest.approx(0.014 + 0.024), True)
    assert evidence_of(cause) == {"calls within one": 4.0, "calls per step": 96.0}  # of the costlier one
    assert cause.advice[0].label.startswith("b.py(2)")
    assert result_of(rules.batchable_loops, looping(a_loop(0.001, 0.001))) is None
    assert result_of(rules.batchable_loops, looping()) is None


@pytest.mark.parametrize("missing", ["has_stacks", "has_shapes"])
def test_loops_need_stacks_and_shapes(missing: str) -> None:
    job = looping(a_loop(0.01, 0.01), **{missing: False})
    assert abstention(result_of(rules.batchable_loops, job)).rule == "batchable loops"


def test_recomputation_costs_what_is_computed_again() -> None:
    assert found(rules.recomputation, alone(step(), facts={"recomputed_s": 0.02})).cost_s == 0.02
    assert result_of(rules.recomputation, alone(step(), facts={"recomputed_s": 0.002})) is None
    assert result_of(rules.recomputation, alone(step(), facts={})) is None


def a_chain(gpu_s: float, longest_s: float) -> Chain:
    return Chain(length=6, per_step=12.0, gpu_s=gpu_s, longest_s=longest_s, line=None, ops=("aten::add",))


def test_a_chain_of_elementwise_kernels_costs_all_but_its_longest() -> None:
    job = alone(step(), chains=(a_chain(0.02, 0.005), a_chain(0.004, 0.002)))
    cause = found(rules.fusable_chains, job)
    assert (cause.cost_s, cause.estimated) == (pytest.approx(0.017), True)
    assert evidence_of(cause) == {"elementwise chains": pytest.approx(0.024)}
    assert result_of(rules.fusable_chains, alone(step(), chains=(a_chain(0.02, 0.016),))) is None


# ---- All rules


def test_findings_are_ordered_by_cost_and_abstentions_stand_apart() -> None:
    job = alone(step(idle_sync_s=0.01, idle_input_s=0.02, copies_s=0.005))
    diagnosis = diagnose(job)
    assert [each.rule for each in diagnosis.findings] == ["input", "synchronizations", "copies"]
    assert [each.rule for each in diagnosis.abstentions] == ["slow products", "batchable loops"]


def test_a_job_without_losses_has_no_findings() -> None:
    known = {"has_shapes": True, "has_stacks": True, "operations": (GOOD,)}
    job = meeting_job([[0.0] * 4] * 2, transfer_s=0.003)
    for rank in range(2):
        job = changed(job, rank, **known)
    assert diagnose(job) == Diagnosis()
