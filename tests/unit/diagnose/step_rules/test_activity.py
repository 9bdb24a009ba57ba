"""Rules about what ranks do beside computing: what they cost, whom they name, and when they are silent."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from scalescope.analysis.configurations import configurations
from scalescope.analysis.events import Note, StepSeries
from scalescope.analysis.training.activity import (
    AllocatorCalls,
    CompilerCalls,
    GarbageCollection,
    GraphBreak,
    RankActivity,
    RankWork,
    Recompilation,
)
from scalescope.diagnose.diagnosis import diagnose_facts
from scalescope.diagnose.step_facts import StepFacts
from scalescope.diagnose.step_rules.compilation import graph_breaks_rule, recompilation_rule
from scalescope.diagnose.step_rules.host import allocator_retries_rule, garbage_collection_rule
from scalescope.diagnose.step_rules.pauses import PERIODIC_PAUSES, periodic_pauses_rule
from scalescope.diagnose.step_rules.ranks import uneven_work_rule
from scalescope.results.result import CHECKPOINT, EVALUATION
from tests.builders.activities import STEP_S, STEPS, facts_with, pausing, recorded, working
from tests.builders.facts import evidence_of, finding
from tests.builders.results import make_result
from tests.builders.steps import step_facts

RULES = (
    allocator_retries_rule, garbage_collection_rule, graph_breaks_rule, periodic_pauses_rule,
    recompilation_rule, uneven_work_rule,
)  # fmt: skip


@pytest.mark.parametrize("on_gpu", [False, True])
def test_what_is_unknown_is_not_claimed(on_gpu: bool) -> None:
    facts = facts_with(RankActivity(rank=0), RankActivity(rank=1), on_gpu=on_gpu)
    nothing = dataclasses.replace(facts, activities=(), launches=())
    for rule in RULES:
        assert rule(facts) is None and rule(nothing) is None


def test_the_rules_belong_to_the_diagnosis() -> None:
    facts = facts_with(pausing(0, 0.2), pausing(1, 0.2, part="backward"))
    (alone,) = diagnose_facts((), steps=(facts,)).findings
    assert (alone.rule, alone.about) == (PERIODIC_PAUSES, "")
    assert {cause.about for cause in diagnose_facts((), steps=(facts, facts)).findings} == {facts.about}


# garbage collection


def _collecting(pause_s: float, rank: int = 0, **known: object) -> RankActivity:
    garbage = GarbageCollection(pause_s=pause_s, longest_s=0.5, collections=(9, 3, 1))
    return RankActivity(rank=rank, garbage=garbage, **known)  # type: ignore[arg-type]


def test_garbage_collection_costs_what_the_worst_rank_pauses() -> None:
    cause = finding(garbage_collection_rule(facts_with(_collecting(0.004), _collecting(0.01, rank=1))))
    assert (cause.cost_s, cause.share, cause.estimated) == (0.01, pytest.approx(0.1), False)
    assert evidence_of(cause)["collections of generation 2"] == 1
    assert all(not advice.argv for advice in cause.advice)  # lines to change
    assert garbage_collection_rule(facts_with(_collecting(0.002))) is None
    garbage = GarbageCollection(pause_s=0.00068, longest_s=0.00046, collections=(990, 90, 0))
    facts = step_facts(step_s=0.016, activities=(RankActivity(rank=0, garbage=garbage),))
    claim = finding(garbage_collection_rule(facts)).claim
    assert "0.68 ms per step (longest pause 0.46 ms)" in claim


def test_a_gpu_notices_the_collector_only_in_long_steps_or_where_it_waits_for_the_host() -> None:
    even = _collecting(0.01, step_times_s=[STEP_S] * STEPS)
    long = _collecting(0.01, step_times_s=[STEP_S] * 9 + [STEP_S + 0.06])
    assert garbage_collection_rule(facts_with(even, on_gpu=True)) is None
    cause = finding(garbage_collection_rule(facts_with(long, on_gpu=True)))
    assert (cause.cost_s, cause.estimated) == (pytest.approx(0.006), True)
    waiting = facts_with(even, on_gpu=True, recording=recorded(host_s=0.03))
    assert finding(garbage_collection_rule(waiting)).cost_s == 0.01
    busy = facts_with(even, on_gpu=True, recording=recorded(host_s=0.001))
    assert garbage_collection_rule(busy) is None


# periodic pauses


def test_a_pause_on_one_rank_is_named_with_its_period_and_part() -> None:
    facts = facts_with(pausing(0, 0.2), pausing(1, 0.2, part="backward"))
    cause = finding(periodic_pauses_rule(facts))
    assert cause.cost_s == pytest.approx(0.02)
    evidence = evidence_of(cause)
    assert (evidence["period"], evidence["rank"], evidence["part of the step"]) == (10, 0, "optimizer")
    assert evidence["pause"] == pytest.approx(0.2)
    assert "rank 0 pauses for 200 ms" in cause.claim


def test_pauses_are_of_one_rank_or_of_all_and_not_too_short() -> None:
    everywhere = finding(periodic_pauses_rule(facts_with(pausing(0, 0.2), pausing(1, 0.2))))
    assert "all ranks pause" in everywhere.claim
    alone = finding(periodic_pauses_rule(facts_with(pausing(0, 0.2, part="backward"))))
    assert "the rank pauses for 200 ms in the backward pass" in alone.claim
    assert periodic_pauses_rule(facts_with(pausing(0, 0.025))) is None
    facts = facts_with(pausing(0, 0.2, part="input"), settings={"num_workers": 3})
    cause = finding(periodic_pauses_rule(facts))
    assert "persistent_workers" in cause.advice[0].command or "persistent-workers" in cause.advice[0].command


def _with_events(*notes: Note, lengths: Mapping[int, float]) -> StepFacts:
    """One rank whose steps have events by their period."""
    times_s = tuple(
        STEP_S + sum(length for period, length in lengths.items() if step % period == period - 1)
        for step in range(STEPS)
    )
    facts = facts_with(RankActivity(rank=0, step_times_s=times_s))
    (configuration,) = configurations([make_result(facts.trial, [list(times_s)])])
    (launch,) = configuration.launches
    launch = dataclasses.replace(launch, series=StepSeries(times_s=times_s, notes=notes))
    return dataclasses.replace(facts, configuration=dataclasses.replace(configuration, launches=(launch,)))


def test_events_are_one_finding_that_names_each_with_its_period_and_advice() -> None:
    notes = (Note(step=49, kind=EVALUATION), Note(step=99, kind=EVALUATION))
    facts = _with_events(*notes, lengths={50: 0.6, 10: 0.2})
    cause = finding(periodic_pauses_rule(facts))
    assert cause.cost_s == pytest.approx(facts.events.cost_s) == pytest.approx(0.032)
    assert cause.claim == (
        "Every 10 steps the rank pauses for 200 ms (20.0 ms per step); every 50 steps the script evaluates "
        "for 600 ms (12.0 ms per step)."
    )
    assert evidence_of(cause)["plain step"] == pytest.approx(STEP_S)
    assert [advice.label.split()[0] for advice in cause.advice] == ["find", "evaluate"]
    assert len(facts.configuration.launches[0].outliers) == 10
    assert facts.configuration.remarks() == []  # which events explain


def test_events_below_three_percent_are_no_finding_and_one_that_came_once_has_no_period() -> None:
    assert periodic_pauses_rule(_with_events(lengths={10: 0.02})) is None
    saved = finding(periodic_pauses_rule(_with_events(Note(step=59, kind=CHECKPOINT), lengths={60: 1.0})))
    assert saved.claim.startswith("In 1 step of 100 the script saves a checkpoint for 1,000 ms")
    assert "async_save" in saved.advice[0].label


def _varied(rank: RankActivity, period: int) -> RankActivity:
    """The same with larger batches where it pauses."""
    works = tuple(300.0 if step % period == period - 1 else 100.0 for step in range(STEPS))
    return dataclasses.replace(rank, work=RankWork(elements=120.0, tokens=None, variation=0.5, by_step=works))


@pytest.mark.parametrize(
    "facts",
    [
        facts_with(pausing(0, 0.2, gc=0.9)),
        facts_with(pausing(0, 0.2, period=4, part="input"), changes={"num_workers": 4}),
        facts_with(_varied(pausing(0, 0.2), 10)),
    ],
    ids=["garbage collection", "loader processes in turn", "larger batches"],
)
def test_pauses_with_another_cause_are_left_to_it(facts: StepFacts) -> None:
    assert periodic_pauses_rule(facts) is None


def _beside_preloaded(facts: StepFacts, times_s: list[float]) -> StepFacts:
    (configuration,) = configurations([make_result(facts.trial, [times_s])])
    return dataclasses.replace(facts, preloaded=configuration)


def test_work_that_ends_with_preloaded_batches_is_the_loaders() -> None:
    steps = _with_events(lengths={4: 0.06})
    assert [event.period for event in steps.events.events] == [4]
    calm = [0.7 * STEP_S] * STEPS
    assert not _beside_preloaded(steps, calm).events.events
    assert periodic_pauses_rule(_beside_preloaded(steps, calm)) is None
    still = [0.7 * STEP_S + 0.06 * (step % 4 == 1) for step in range(STEPS)]
    assert _beside_preloaded(steps, still).events.events
    assert _beside_preloaded(steps, calm[:7]).events.events  # too few to tell
    noted = _with_events(Note(step=49, kind=EVALUATION), Note(step=99, kind=EVALUATION), lengths={50: 0.6})
    assert _beside_preloaded(noted, calm).events.events


def test_pauses_that_end_with_preloaded_batches_are_the_loaders() -> None:
    steps = facts_with(pausing(0, 0.2, part="input"))
    assert finding(periodic_pauses_rule(steps))
    assert periodic_pauses_rule(_beside_preloaded(steps, [0.7 * STEP_S] * STEPS)) is None


# uneven work


def test_a_rank_with_more_tokens_is_data_and_not_a_slow_rank() -> None:
    facts = facts_with(working(0, 1000.0, 0.01), working(1, 3000.0, 0.03))
    cause = finding(uneven_work_rule(facts))
    assert cause.cost_s == pytest.approx(0.03)
    assert (cause.root, cause.estimated) == (True, True)
    assert "Rank 1 has 3,000 tokens per step, and the others have 1,000" in cause.claim
    assert evidence_of(cause)["rank 1"] == 3000.0


def test_ranks_that_take_turns_are_not_named() -> None:
    first, second = [100.0, 400.0, 100.0, 200.0] * 25, [300.0, 100.0, 100.0, 400.0] * 25
    times_s = [STEP_S * max(pair) / 300.0 for pair in zip(first, second, strict=True)]
    ranks = (working(0, 200.0, 0.0, first), working(1, 225.0, 0.0, second))
    facts = facts_with(*(dataclasses.replace(rank, step_times_s=times_s) for rank in ranks))
    uneven = facts.uneven_work
    assert uneven is not None
    cause = finding(uneven_work_rule(dataclasses.replace(facts)))
    assert cause.cost_s == pytest.approx(uneven.cost_s)
    assert evidence_of(cause)["largest batch over the mean"] == pytest.approx(uneven.most_over_mean)


def test_equal_work_a_single_rank_and_a_pipeline_are_not_uneven() -> None:
    assert uneven_work_rule(facts_with(working(0, 1000.0, 0.01), working(1, 1000.0, 0.03))) is None
    assert uneven_work_rule(facts_with(working(0, 1000.0, 0.01))) is None
    stages = facts_with(working(0, 1000.0, 0.01), working(1, 3000.0, 0.03), changes={"strategy": "pipeline"})
    assert uneven_work_rule(stages) is None


# allocator


def _allocating(**calls: float) -> RankActivity:
    return RankActivity(rank=0, allocator=AllocatorCalls(**calls))


def test_retries_are_advised_more_room(tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text("workload: mlp\n")
    full = _allocating(
        retries=1.0, allocations=20.0, releases=20.0, reserved_bytes=100.0, inactive_split_bytes=40.0
    )
    facts = dataclasses.replace(facts_with(full, on_gpu=True), path=tmp_path)
    cause = finding(allocator_retries_rule(facts))
    assert cause.estimated and cause.cost_s is not None and cause.cost_s > 0.01
    assert evidence_of(cause)["reserved but unusable"] == pytest.approx(0.4)
    expandable, smaller = cause.advice
    assert expandable.argv[expandable.argv.index("--env") + 1].startswith("PYTORCH_CUDA_ALLOC_CONF=")
    assert "batch_size=5" in smaller.command


def test_blocks_that_are_returned_in_every_step_are_a_line_to_remove() -> None:
    cause = finding(
        allocator_retries_rule(facts_with(_allocating(allocations=20.0, releases=20.0), on_gpu=True))
    )
    assert cause.advice[0].argv == ()
    assert allocator_retries_rule(facts_with(_allocating(allocations=0.5, releases=0.1), on_gpu=True)) is None


# torch.compile


def _compiled(**calls: object) -> RankActivity:
    defaults = {
        "inside_s": 0.0, "compilations_inside": 0, "recompilations_before": 0, "recompilations_inside": 0
    }  # fmt: skip
    return RankActivity(rank=0, compiler=CompilerCalls(**{**defaults, **calls}))  # type: ignore[arg-type]


def _broken(*files: str) -> RankActivity:
    breaks = tuple(GraphBreak(reason="why", file=file, line=7, function="f", count=1) for file in files)
    return _compiled(graph_breaks=breaks)


def test_graph_breaks_are_named_and_cost_at_most_what_the_gpu_waits_for_the_host() -> None:
    unknown = finding(graph_breaks_rule(facts_with(_broken("/job/model.py"))))
    assert (unknown.cost_s, unknown.share) == (None, 0.0)
    assert "model.py:7 (why)" in unknown.claim and "/job/" not in unknown.claim
    many = _broken(*(f"/job/{number}.py" for number in range(200)))
    capped = facts_with(many, on_gpu=True, recording=recorded(host_s=0.01))
    assert finding(graph_breaks_rule(capped)).cost_s == pytest.approx(0.01)
    few = facts_with(_broken("/a.py", "/b.py"), on_gpu=True, recording=recorded(host_s=0.01))
    assert finding(graph_breaks_rule(few)).cost_s == pytest.approx(2 * 100e-6)
    assert graph_breaks_rule(facts_with(_broken())) is None
    assert graph_breaks_rule(facts_with(_broken(""))) is None  # inside torch: there is no line to change


AGAIN = Recompilation(reason="size", function="forward", file="/job/m.py", line=3, in_window=True, time_s=1.0)


def test_recompilation_costs_the_seconds_of_compiling_in_the_window() -> None:
    rank = _compiled(inside_s=0.04, compilations_inside=3, recompilations_inside=2, recompilations=(AGAIN,))
    cause = finding(recompilation_rule(facts_with(rank)))
    assert (cause.cost_s, cause.estimated) == (0.04, False)
    assert "forward at m.py:3" in cause.claim
    assert evidence_of(cause)["/job/m.py:3"] == "size"
    assert recompilation_rule(facts_with(_compiled(recompilations_before=3, recompilations=(AGAIN,)))) is None
    cause = finding(recompilation_rule(facts_with(_compiled(recompilations_before=9, given_up=1))))
    assert cause.cost_s == 0.0
    assert "gave up" in cause.claim
