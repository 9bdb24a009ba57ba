"""The waterfall by ablation: terms that no launch separates are merged and named, never guessed."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import pytest

from scalescope.analysis.configurations import configurations
from scalescope.analysis.scaling.rows import (
    OTHER_SAMPLES,
    UNKNOWN_SAMPLES,
    ScalingRow,
    not_compared,
    scaling_rows,
)
from scalescope.analysis.scaling.waterfall import (
    BETWEEN_RANKS,
    COMMUNICATION,
    CONTENTION,
    INPUT,
    RANDOM_SKEW,
    SMALLER_BATCH,
    STRAGGLERS,
    WRAPPER,
    Term,
    Waterfall,
)
from scalescope.experiment.explanations import (
    arrivals_of,
    at_per_rank_batch,
    single_rank_baseline,
    with_preloaded_input,
    without_communication,
)
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from tests.builders.commands import command_launches, make_command
from tests.builders.results import make_result, make_trial

ONE, TWO = make_command(), make_command(ranks=2)


def silent(trial: Trial) -> Trial:
    ablation = without_communication(trial)
    assert ablation is not None
    return ablation


def around(step_s: float) -> tuple[float, ...]:
    """Launches whose mean of logarithms is that of this step."""
    return step_s * 0.999, step_s / 0.999


def row_of(*launches: Iterable[Result]) -> ScalingRow:
    rows = scaling_rows(configurations([launch for group in launches for launch in group]))
    return next(row for row in rows if row.ranks > 1)


def waterfall_of(*launches: Iterable[Result]) -> Waterfall:
    waterfall = row_of(*launches).waterfall
    assert waterfall is not None
    return waterfall


def term_of(waterfall: Waterfall, name: str) -> Term:
    term = waterfall.term(name)
    assert term is not None, name
    return term


def time_of(waterfall: Waterfall, name: str) -> float:
    time_s = term_of(waterfall, name).time_s
    assert time_s is not None, term_of(waterfall, name).reason
    return time_s.value


def two_ranks(full: Trial = TWO, **rest: Any) -> tuple[list[Result], list[Result]]:
    """Normal ranks and the same without communication."""
    return (
        command_launches(full, around(0.030), **rest),
        command_launches(silent(with_preloaded_input(full)), around(0.022), **rest),
    )


def adds_up(waterfall: Waterfall) -> bool:
    known = math.fsum(term.time_s.value for term in waterfall.terms if term.time_s is not None)
    return math.isclose(waterfall.ideal_s + known, waterfall.step_s, rel_tol=1e-9)


def test_contention_includes_the_wrapper_where_one_rank_goes_without() -> None:
    waterfall = waterfall_of(command_launches(ONE, around(0.020), wrapper="none"), *two_ranks())
    contention = term_of(waterfall, CONTENTION)
    assert contention.includes == (WRAPPER,)
    assert contention.merged_because is not None and "no unwrapped form" in contention.merged_because
    assert time_of(waterfall, CONTENTION) == pytest.approx(0.002, rel=1e-3)
    assert time_of(waterfall, COMMUNICATION) == pytest.approx(0.008, rel=1e-3)
    assert [term.name for term in waterfall.terms] == [CONTENTION, STRAGGLERS, COMMUNICATION]
    assert adds_up(waterfall)
    waterfall = waterfall_of(command_launches(ONE, around(0.020), wrapper="ddp"), *two_ranks())
    contention = term_of(waterfall, CONTENTION)
    assert (contention.includes, contention.merged_because) == ((), None)
    assert waterfall.term(WRAPPER) is None


def test_a_share_of_the_batch_that_cannot_be_launched_is_part_of_contention() -> None:
    one = make_command(observed_global_batch_size=64)
    two = make_command(ranks=2, observed_global_batch_size=64)
    waterfall = waterfall_of(
        command_launches(one, around(0.032), samples=64, wrapper="none"), *two_ranks(two)
    )
    assert waterfall.trial.mode == "strong" and waterfall.term(SMALLER_BATCH) is None
    assert term_of(waterfall, CONTENTION).includes == (SMALLER_BATCH, WRAPPER)
    assert waterfall.ideal_s == pytest.approx(0.016, rel=1e-3)
    assert time_of(waterfall, CONTENTION) == pytest.approx(0.006, rel=1e-3)
    assert adds_up(waterfall)


def test_a_share_of_a_batch_that_the_command_takes_is_a_term_of_its_own() -> None:
    command = "torchrun --nproc-per-node={world_size} train.py --batch {global_batch_size}"
    two = make_command(ranks=2, global_batch_size=64, command=command)
    one = single_rank_baseline(two)
    share = single_rank_baseline(at_per_rank_batch(two))
    waterfall = waterfall_of(
        command_launches(one, around(0.032), samples=64, wrapper="none"),
        command_launches(share, around(0.018), samples=32, wrapper="none"),
        *two_ranks(two),
    )
    assert time_of(waterfall, SMALLER_BATCH) == pytest.approx(0.002, rel=1e-2)
    assert term_of(waterfall, CONTENTION).includes == (WRAPPER,)
    assert time_of(waterfall, CONTENTION) == pytest.approx(0.004, rel=1e-2)
    assert adds_up(waterfall)


@pytest.mark.parametrize(
    ("wrapper", "word"), [("fsdp1", "FSDP1"), ("deepspeed", "DeepSpeed"), ("none", "no wrap")]
)
def test_what_is_lost_between_ranks_is_one_term_where_communication_stays(wrapper: str, word: str) -> None:
    two = TWO.replace(observed_wrapper=wrapper)
    waterfall = waterfall_of(
        command_launches(ONE.replace(observed_wrapper=wrapper), around(0.020), wrapper="none"),
        command_launches(two, around(0.030), wrapper=wrapper),
    )
    (term,) = waterfall.terms
    assert term.name == BETWEEN_RANKS
    assert set(term.includes) - {WRAPPER} == {CONTENTION, STRAGGLERS, COMMUNICATION}
    assert (WRAPPER in term.includes) == (wrapper != "none")
    assert term.merged_because is not None and word in term.merged_because
    assert time_of(waterfall, BETWEEN_RANKS) == pytest.approx(0.010, rel=1e-3)
    assert adds_up(waterfall)


def test_samples_must_agree_within_five_percent_without_communication() -> None:
    waterfall = waterfall_of(
        command_launches(ONE, around(0.020)),
        command_launches(TWO, around(0.030)),
        command_launches(silent(TWO), around(0.022), samples=29),
    )
    assert {term.name for term in waterfall.terms_that_are("not_measured")} == {
        CONTENTION,
        STRAGGLERS,
        COMMUNICATION,
    }
    reason = term_of(waterfall, COMMUNICATION).reason
    assert reason is not None and "29 samples" in reason and "32" in reason
    waterfall = waterfall_of(
        command_launches(ONE, around(0.020), samples=1000),
        command_launches(TWO, around(0.030), samples=1000),
        command_launches(silent(TWO), around(0.022), samples=1040),
    )
    assert time_of(waterfall, COMMUNICATION) == pytest.approx(0.008, rel=1e-3)
    waterfall = waterfall_of(command_launches(ONE, around(0.020)), command_launches(TWO, around(0.030)))
    assert not any(term.lost for term in waterfall.terms)
    assert waterfall.term(BETWEEN_RANKS) is None


def test_input_is_what_it_costs_beyond_one_rank() -> None:
    one, two = ONE.replace(observed_loader=True), TWO.replace(observed_loader=True)
    waterfall = waterfall_of(
        command_launches(one, around(0.023)),
        command_launches(with_preloaded_input(one), around(0.020)),
        *two_ranks(two),
        command_launches(with_preloaded_input(two), around(0.026)),
    )
    assert time_of(waterfall, INPUT) == pytest.approx(0.001, rel=0.05)
    assert time_of(waterfall, COMMUNICATION) == pytest.approx(0.004, rel=1e-2)
    assert adds_up(waterfall)
    one, two = (trial.replace(observed_loader=True, observed_wrapper="fsdp1") for trial in (ONE, TWO))
    (term,) = waterfall_of(command_launches(one, around(0.020)), command_launches(two, around(0.030))).terms
    assert INPUT in term.includes and term.time_s is not None


def recorded_ranks(trial: Trial, waited_s: float) -> list[Result]:
    """Recorded launches in which one of two ranks waits so long in the single exchange of a step."""
    launches = []
    for result in command_launches(arrivals_of(trial), (0.030, 0.030), samples=None):
        ranks = []
        for record in result.ranks:
            exposed_s = 0.004 + (waited_s if record.rank == 0 else 0.0)
            parts = dict.fromkeys(("copy_s", "idle_host_s", "idle_data_s", "idle_queued_s"), 0.0)
            parts |= {"step_s": 0.030, "compute_s": 0.030 - exposed_s, "exposed_s": exposed_s}
            parts |= {"collective_s": exposed_s, "collective_exposed_s": exposed_s}
            samples = {f"trace/{name}": [time_s] * 4 for name, time_s in parts.items()}
            samples["trace/collectives"] = [1.0] * 4
            ranks.append(dataclasses.replace(record, samples=samples))
        launches.append(dataclasses.replace(result, ranks=ranks))
    return launches


def test_recorded_waiting_separates_random_skew_only_where_there_is_a_record() -> None:
    launches = command_launches(ONE, around(0.020)), *two_ranks()
    waterfall = waterfall_of(*launches)
    assert term_of(waterfall, COMMUNICATION).includes == (RANDOM_SKEW,)
    assert waterfall.split is None
    waterfall = waterfall_of(*launches, recorded_ranks(TWO, 0.006))
    assert term_of(waterfall, COMMUNICATION).includes == ()
    # One of two ranks waits 6 ms: 3 ms of a step's mean over ranks, and communication has that much less.
    assert time_of(waterfall, RANDOM_SKEW) == pytest.approx(0.003, rel=1e-2)
    assert time_of(waterfall, COMMUNICATION) == pytest.approx(0.005, rel=1e-2)
    assert waterfall.split is not None and waterfall.split.exposed_s.value == pytest.approx(0.004)
    assert adds_up(waterfall)


def test_what_is_not_known_by_samples_is_not_compared() -> None:
    measured = configurations(
        [
            *command_launches(ONE.replace(observed_batch_size=None), around(0.020), samples=None),
            *command_launches(TWO.replace(observed_batch_size=None), around(0.030), samples=None),
        ]
    )
    assert scaling_rows(measured) == ()
    (reason,) = not_compared(measured)
    assert reason.reason == UNKNOWN_SAMPLES
    assert [member.trial.world_size for member in reason.members] == [1, 2]
    measured = configurations(
        [
            *command_launches(ONE, around(0.020), samples=32),
            *command_launches(TWO.replace(observed_batch_size=20), around(0.030), samples=20),
        ]
    )
    assert scaling_rows(measured) == ()
    assert [reason.reason for reason in not_compared(measured)] == [OTHER_SAMPLES]


def test_one_rank_of_a_command_is_the_only_baseline() -> None:
    row = row_of(command_launches(ONE, around(0.020)), *two_ranks())
    assert (row.wrapped, row.efficiency_of_wrapped, row.baseline_ranks) == (None, None, 1)
    assert row.speedup.value == pytest.approx(2 * 0.020 / 0.030, rel=1e-3)
    assert not_compared([row.configuration]) == ()


def timed(trial: Trial, step_s: float) -> list[Result]:
    """Three launches of a built-in workload."""
    return [make_result(trial, [[step_s] * 10] * trial.world_size, launch=launch) for launch in range(3)]


def built_in_launches() -> dict[str, list[Result]]:
    """Strong scaling of a built-in workload with a loader: every launch that its waterfall needs."""
    full = make_trial(strategy="ddp", world_size=2, oversubscribe=True, global_batch_size=64, num_workers=1)
    share = at_per_rank_batch(full)
    return {
        "full": timed(full, 0.030),
        "plain": timed(single_rank_baseline(full), 0.032),
        "share with loader": timed(single_rank_baseline(share), 0.018),
        "share": timed(with_preloaded_input(single_rank_baseline(share)), 0.017),
        "wrapped": timed(with_preloaded_input(share.on_one_rank()), 0.0175),
        "preloaded": timed(with_preloaded_input(full), 0.027),
        "without communication": timed(silent(with_preloaded_input(full)), 0.020),
    }


def test_every_term_of_a_built_in_workload_is_measured() -> None:
    waterfall = waterfall_of(*built_in_launches().values())
    times = {term.name: term.time_s.value for term in waterfall.terms if term.time_s is not None}
    expected = {
        SMALLER_BATCH: 0.002,
        WRAPPER: 0.0005,
        CONTENTION: 0.0025,
        STRAGGLERS: 0.0,
        COMMUNICATION: 0.007,
        INPUT: 0.002,
    }
    assert times == pytest.approx(expected, abs=1e-9)
    assert list(times) == list(expected)
    assert term_of(waterfall, COMMUNICATION).includes == (RANDOM_SKEW,)
    assert waterfall.simple_comm_s.value == pytest.approx(0.012)
    assert adds_up(waterfall)


@pytest.mark.parametrize(
    ("missing", "unknown", "reason"),
    [
        ("share with loader", {SMALLER_BATCH, INPUT}, "share of the batch"),
        ("share", {WRAPPER, INPUT}, "in the wrapper"),
        ("wrapped", {WRAPPER, CONTENTION}, "in the wrapper"),
        ("preloaded", {CONTENTION, STRAGGLERS, COMMUNICATION, INPUT}, "not measured"),
        ("without communication", {CONTENTION, STRAGGLERS, COMMUNICATION}, "without communication"),
    ],
)
def test_a_launch_that_is_missing_makes_its_terms_unknown(
    missing: str, unknown: set[str], reason: str
) -> None:
    waterfall = waterfall_of(*(made for name, made in built_in_launches().items() if name != missing))
    terms = waterfall.terms_that_are("not_measured")
    assert {term.name for term in terms} == unknown
    assert terms[0].reason is not None and reason in terms[0].reason
    assert all(term.includes == () and term.merged_because is None for term in terms)
