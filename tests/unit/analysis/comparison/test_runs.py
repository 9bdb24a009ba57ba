"""Two runs compared: what is matched, what is claimed, and what more launches could show."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from scalescope.analysis.comparison.environments import differences, other_hardware
from scalescope.analysis.comparison.runs import (
    RunComparison,
    compare_runs,
    full_configurations,
    setting_differences,
    variant_pairs,
)
from scalescope.analysis.configurations import Configuration
from scalescope.analysis.run_spread import RunSpread
from scalescope.experiment.trial import Trial
from scalescope.results.result import RankRecord, Result
from tests.builders.results import make_result, make_trial

CALM = (0.0100, 0.0101, 0.0099, 0.0100, 0.0100)
NOISY = (0.0100, 0.0125, 0.0085, 0.0110, 0.0095)
TRIAL = make_trial(batch_size=10)


def launches(trial: Trial, steps_s: Sequence[float], factor: float = 1.0) -> list[Result]:
    """One launch for each step time."""
    return [
        make_result(trial, [[factor * step] * 10] * trial.world_size, launch=number)
        for number, step in enumerate(steps_s)
    ]


def times(factor: float, steps_s: Sequence[float]) -> tuple[float, ...]:
    return tuple(factor * step for step in steps_s)


def compared(before: Sequence[float], after: Sequence[float], factor: float = 1.0) -> RunComparison:
    return compare_runs(launches(TRIAL, before), launches(TRIAL, after, factor), 0.03)


@pytest.mark.parametrize(
    ("factor", "verdict", "regressed"),
    [
        (1.0, "no difference", False),
        (1.005, "no difference", False),
        (0.90, "faster", False),
        (1.08, "slower", True),
        (1.02, "slower", False),  # surely, but by less than the threshold
    ],
)
def test_verdicts_of_calm_launches(factor: float, verdict: str, regressed: bool) -> None:
    comparison = compared(CALM, CALM, factor)
    (config,) = comparison.judged
    assert (config.verdict, config.regressed, comparison.gate_missed) == (verdict, regressed, regressed)
    assert config.speedup.value == pytest.approx(1.0 / factor)
    assert config.change == pytest.approx(1.0 / factor - 1.0)


def test_noise_and_single_launches_are_inconclusive() -> None:
    for before, after, factor in ((CALM, CALM[:1], 2.0), (CALM[:1], CALM, 2.0), (NOISY, NOISY, 1.08)):
        comparison = compared(before, after, factor)
        (config,) = comparison.judged
        assert (config.verdict, config.too_few) == ("inconclusive", before is not after)
        assert not config.regressed and not comparison.gate_missed


def test_ablations_are_not_compared() -> None:
    ablation = make_trial(batch_size=10, world_size=2, without_communication=True)
    both = launches(TRIAL, CALM) + launches(ablation, CALM)
    assert [config.trial.trial_id for config in compare_runs(both, both, 0.03).judged] == [TRIAL.trial_id]


def test_settings_that_make_trials_different_are_named() -> None:
    assert setting_differences(TRIAL, TRIAL) == ()
    assert setting_differences(TRIAL, TRIAL.replace(seed=3)) == (("seed", 0, 3),)


@pytest.mark.parametrize(
    ("changes", "work", "regressed"),
    [
        ({"hidden_dim": 2048}, "different", False),
        ({"batch_size": 20}, "different", False),
        ({"seed": 1, "optimizer": "adamw"}, "different", False),
        ({"world_size": 2, "strategy": "ddp"}, "other ranks", False),
        ({"fused_optimizer": True}, "same", True),
        ({"threads_per_rank": 2, "lr": 0.5}, "same", True),
    ],
)
def test_variants_of_a_job_are_compared_and_only_the_same_work_can_regress(
    changes: dict[str, Any], work: str, regressed: bool
) -> None:
    """Steps take three times as long, which is slower for every variant here, per sample too."""
    other = TRIAL.replace(**changes)
    comparison = compare_runs(launches(TRIAL, CALM), launches(other, CALM, 3.0), 0.03)
    (config,) = comparison.judged
    assert (config.work, config.verdict) == (work, "slower")
    assert {name for name, _, _ in config.differs} == set(changes) - {"strategy"}
    assert (config.regressed, comparison.gate_missed) == (regressed, regressed)
    assert (len(comparison.same_work), len(comparison.other_work)) == (
        int(work == "same"),
        int(work != "same"),
    )
    assert comparison.only_before == comparison.only_after == ()


def test_more_ranks_have_a_speedup_per_rank() -> None:
    other = TRIAL.replace(world_size=2, strategy="ddp")
    (config,) = compare_runs(launches(TRIAL, CALM), launches(other, CALM, 1.25), 0.03).judged
    assert config.speedup.value == pytest.approx(1.6)
    assert config.per_rank == pytest.approx(0.8)


def test_numbers_of_ranks_differ_only_where_nothing_else_is_compared() -> None:
    two, four = (TRIAL.replace(world_size=ranks, strategy="ddp") for ranks in (2, 4))
    before = launches(TRIAL, CALM) + launches(two, CALM)
    comparison = compare_runs(before, launches(two, CALM) + launches(four, CALM), 0.03)
    assert [config.trial.world_size for config in comparison.judged] == [2]
    assert (len(comparison.only_before), len(comparison.only_after)) == (1, 1)


def test_variants_on_several_ranks_are_paired_rank_by_rank() -> None:
    small = [TRIAL, TRIAL.replace(world_size=2, strategy="ddp")]
    large = [trial.replace(hidden_dim=2048) for trial in small]
    runs = [[launch for trial in side for launch in launches(trial, CALM)] for side in (small, large)]
    judged = compare_runs(*runs, threshold=0.03).judged
    assert [(config.before.trial.world_size, config.trial.world_size) for config in judged] == [
        (1, 1),
        (2, 2),
    ]
    assert {name for config in judged for name, _, _ in config.differs} == {"hidden_dim"}


def test_an_unmatched_configuration_names_the_differences_to_the_nearest() -> None:
    other = make_trial(batch_size=20)
    comparison = compare_runs(
        launches(TRIAL, CALM), launches(TRIAL, CALM) + launches(other, CALM), threshold=0.03
    )
    assert comparison.only_before == ()
    (alone,) = comparison.only_after
    assert alone.nearest == (("batch_size", 20, 10),)


def test_a_configuration_that_fails_only_now_misses_the_gate() -> None:
    broken = [
        dataclasses.replace(launch, status="failed", reason="rank 0 died", ranks=[])
        for launch in launches(TRIAL, CALM)
    ]
    comparison = compare_runs(launches(TRIAL, CALM), broken, 0.03)
    assert [(failure.trial.trial_id, failure.reason) for failure in comparison.failed] == [
        (TRIAL.trial_id, "rank 0 died")
    ]
    assert comparison.gate_missed and not comparison.has_nothing_in_common
    assert comparison.only_before == ()
    # One launch of several that failed is noise of another kind; what is left is judged.
    some = [broken[0], *launches(TRIAL, CALM)[1:]]
    assert compare_runs(launches(TRIAL, CALM), some, 0.03).failed == ()


def test_other_machines_may_have_other_threads_where_the_match_is_unmistakable() -> None:
    there = TRIAL.replace(threads_per_rank=8)
    strict = compare_runs(launches(TRIAL, CALM), launches(there, CALM), 0.03)
    loose = compare_runs(launches(TRIAL, CALM), launches(there, CALM), 0.03, any_hardware=True)
    assert [name for config in strict.judged for name, _, _ in config.differs] == ["threads_per_rank"]
    assert [config.verdict for config in loose.judged] == ["no difference"]
    assert loose.only_before == loose.only_after == ()
    two = launches(TRIAL.replace(threads_per_rank=8), CALM) + launches(
        TRIAL.replace(threads_per_rank=4), CALM
    )
    comparison = compare_runs(launches(TRIAL, CALM), two, 0.03, any_hardware=True)
    assert comparison.has_nothing_in_common


def communication(times_s: Sequence[float], size: int = 1 << 20) -> Result:
    settings = {"benchmark": "comm", "world_size": 2, "dtype": "float32", "backend": "gloo", "device": "cpu"}
    samples = {f"all_reduce/in/{size}": list(times_s)}
    ranks = [RankRecord(rank=n, host="h", device="cpu", placement="", samples=samples) for n in range(2)]
    return dataclasses.replace(make_result(TRIAL, []), settings=settings, ranks=ranks)


def test_collectives_are_matched_by_size_and_shown_by_their_means() -> None:
    before, after = communication([0.001, 0.001, 0.007]), communication([0.004, 0.004, 0.010])
    comparison = compare_runs([before], [after], 0.03)
    (pair,) = comparison.collectives
    assert pair.change == pytest.approx(-0.5)
    assert not comparison.gate_missed and not comparison.has_nothing_in_common
    assert compare_runs([before], [communication([0.001], size=1 << 21)], 0.03).has_nothing_in_common


def test_two_runs_differ_more_than_their_launches() -> None:
    spread = RunSpread(deviation=0.02, freedom=20.0, runs=21)
    results = launches(TRIAL, CALM), launches(TRIAL, CALM, 1.025)
    (within,) = compare_runs(*results, 0.03).judged
    (between,) = compare_runs(*results, 0.03, spread=spread).judged
    assert (within.verdict, between.verdict) == ("slower", "inconclusive")
    assert between.remedy is not None and between.remedy.interleaved is not None


def test_variants_are_paired_where_only_one_partner_is_possible() -> None:
    def of(*trials: Trial) -> list[Configuration]:
        return full_configurations([launch for trial in trials for launch in launches(trial, CALM)])

    small, large = make_trial(batch_size=10), make_trial(batch_size=20)
    left, right = of(small, large), of(small.replace(lr=0.5), large.replace(lr=0.5))
    pairs = variant_pairs(left, right, [])
    assert [(old.trial.rank_batch_size, new.trial.rank_batch_size) for old, new in pairs] == [
        (10, 10),
        (20, 20),
    ]
    assert variant_pairs(left, of(make_trial(batch_size=30)), []) == []  # as near to both


MACHINE: dict[str, Any] = {
    "cpu_model": "A",
    "cores": 2,
    "memory_bytes": 1 << 34,
    "torch_version": "2.6",
    "cuda_version": None,
    "gpus": [],
}


def environment(**changes: Any) -> dict[str, Any]:
    outside = {name: changes.pop(name) for name in ("variables", "git") if name in changes}
    return {"machine": {**MACHINE, **changes}, "scalescope_version": "1", **outside}


@pytest.mark.parametrize(
    ("changes", "hardware"),
    [
        ({"cpu_model": "B"}, True),
        ({"cores": 4}, True),
        ({"gpus": [{"name": "H200"}]}, True),
        ({"torch_version": "2.7"}, False),
        ({"cuda_version": "12.4"}, False),
        ({"memory_bytes": 1 << 35}, False),
        ({"variables": {"OMP_NUM_THREADS": "1"}}, False),
        ({"git": {"commit": "b" * 40}}, False),
    ],
)
def test_every_difference_is_listed_and_only_hardware_refuses(
    changes: dict[str, Any], hardware: bool
) -> None:
    before = environment(git={"commit": "a" * 40})
    after = environment(**{"git": {"commit": "a" * 40}, **changes})
    (difference,) = differences(before, after)
    assert bool(other_hardware((difference,))) is hardware


def test_differences_of_an_environment_are_shown() -> None:
    other = environment(memory_bytes=(1 << 34) + 4096)  # a kernel keeps a little more or less
    assert differences(environment(), other) == ()
    single, two = ({"gpus": [{"name": "H200"}] * count} for count in (1, 2))
    (difference,) = differences(environment(**single), environment(**two))
    assert (difference.before, difference.after) == ("1 × H200", "2 × H200")
    clean, dirty = ({"git": {"commit": "a" * 40, "changed": changed}} for changed in (False, True))
    (difference,) = differences(environment(**clean), environment(**dirty))
    assert (difference.before, difference.after) == ("a" * 12, f"{'a' * 12} with changes")


def test_an_unrecorded_or_meaningless_environment_is_not_called_different() -> None:
    unknown = differences({}, environment())
    assert {difference.before for difference in unknown if difference.kind == "hardware"} == {"unknown"}
    for before in ({}, {"machine": 3}, {"machine": {"gpus": "x"}, "git": [], "variables": 1}):
        assert other_hardware(differences(before, environment())) == ()


def test_the_same_job_is_matched_however_long_it_measured() -> None:
    counted, timed = make_trial(), make_trial(steps_per_epoch="auto", window=2.0)
    assert counted.trial_id != timed.trial_id
    comparison = compare_runs(launches(counted, CALM), launches(timed, CALM, 1.08), 0.03)
    (judged,) = comparison.judged
    assert judged.regressed
    assert not comparison.only_before and not comparison.only_after
    broken = [
        dataclasses.replace(result, status="failed", reason="killed") for result in launches(timed, CALM)
    ]
    comparison = compare_runs(launches(counted, CALM), broken, 0.03)
    assert [failed.reason for failed in comparison.failed] == ["killed"]


def test_lengths_that_were_swept_are_not_mixed_up() -> None:
    lengths = [make_trial(steps_per_epoch=steps) for steps in (13, 23)]
    before = [result for trial in lengths for result in launches(trial, CALM)]
    comparison = compare_runs(before, launches(make_trial(steps_per_epoch="auto"), CALM), 0.03)
    assert comparison.judged == ()
    assert (len(comparison.only_before), len(comparison.only_after)) == (2, 1)
