"""The spread between runs: recovered from made-up runs, and the default where there are few."""

import random
import statistics

import pytest

from scalescope.analysis.run_spread import DEFAULT_SPREAD, RunMean, run_spread


def runs(
    job: str, count: int, between: float, within: float, *, launches: int = 5, seed: int = 0
) -> list[RunMean]:
    draw = random.Random(f"{job}/{seed}")
    means = []
    for number in range(count):
        centre = draw.gauss(3.0, between)
        rates = [draw.gauss(centre, within) for _ in range(launches)]
        variance = statistics.variance(rates) / launches
        means.append(RunMean(job=job, run=f"r{number}", mean=statistics.fmean(rates), variance=variance))
    return means


@pytest.mark.parametrize("between", [0.01, 0.03])
def test_the_spread_is_recovered_beside_the_noise_of_launches(between: float) -> None:
    estimates = [run_spread(runs("a", 20, between, 0.02, seed=seed)).deviation ** 2 for seed in range(60)]
    assert statistics.fmean(estimates) ** 0.5 == pytest.approx(between, rel=0.15)


def test_runs_that_differ_as_launches_do_have_no_spread_of_their_own() -> None:
    estimates = [run_spread(runs("a", 20, 0.0, 0.02, seed=seed)).deviation for seed in range(40)]
    assert min(estimates) == 0.0
    assert statistics.fmean(estimates) < 0.004


def test_jobs_are_pooled_and_their_speeds_do_not_matter() -> None:
    slow = [
        RunMean(job="b", run=m.run, mean=m.mean - 5.0, variance=m.variance) for m in runs("b", 6, 0.02, 0.01)
    ]
    spread = run_spread([*runs("a", 6, 0.02, 0.01), *slow])
    assert (spread.runs, spread.freedom) == (6, 10.0)
    assert 0.008 < spread.deviation < 0.04


@pytest.mark.parametrize("count", [0, 1, 4])
def test_few_runs_have_the_default(count: int) -> None:
    assert run_spread(runs("a", count, 0.02, 0.01)) == DEFAULT_SPREAD
    assert DEFAULT_SPREAD.runs is None


def test_runs_of_different_jobs_say_nothing_about_each_other() -> None:
    assert run_spread([mean for job in "abcdef" for mean in runs(job, 1, 0.02, 0.01)]) == DEFAULT_SPREAD
