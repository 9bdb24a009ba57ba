"""Two groups of times are told from one wide group, and the spread between runs is recovered."""

import random
import statistics

import pytest

from scalescope.analysis.modes import two_modes
from scalescope.analysis.run_spread import DEFAULT_SPREAD, RunMean, run_spread


def mixture(rng: random.Random, count: int, slow_share: float) -> list[float]:
    """Exchanges of 0.25 ms that now and then wait 4 ms for a tick of the scheduler."""
    return [
        (4e-3 if rng.random() < slow_share else 0.25e-3) * rng.lognormvariate(0.0, 0.2) for _ in range(count)
    ]


def test_the_two_groups_are_recovered() -> None:
    modes = two_modes(mixture(random.Random(1), 400, 0.4))
    assert modes is not None
    assert modes.fast_s == pytest.approx(0.25e-3, rel=0.05)
    assert modes.slow_s == pytest.approx(4e-3, rel=0.05)
    assert modes.slow_share == pytest.approx(0.4, abs=0.06)


@pytest.mark.parametrize("slow_share", [0.3, 0.7])
def test_mixtures_are_recognised_nearly_always(slow_share: float) -> None:
    rng = random.Random(2)
    recognised = sum(two_modes(mixture(rng, 30, slow_share)) is not None for _ in range(100))
    assert recognised > 90


@pytest.mark.parametrize(("count", "spread"), [(20, 0.1), (20, 1.5), (100, 1.5)])
def test_one_group_is_rarely_split_however_wide(count: int, spread: float) -> None:
    rng = random.Random(3)
    groups = ([rng.lognormvariate(0.0, spread) for _ in range(count)] for _ in range(100))
    assert sum(two_modes(times) is not None for times in groups) <= 2


@pytest.mark.parametrize(
    "times",
    [
        [],
        [1.0, 4.0] * 9,  # too few
        [1.0] * 50,
        [1.0] * 25 + [1.9] * 25,  # not far enough apart
        [1.0] * 45 + [9.0] * 5,  # outliers
        [0.0] * 25 + [1.0] * 25,
    ],
)
def test_what_is_no_mixture_of_two(times: list[float]) -> None:
    assert two_modes(times) is None


# the spread between runs


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


def test_the_spread_is_recovered_beside_the_noise_of_launches() -> None:
    estimates = [run_spread(runs("a", 20, 0.03, 0.02, seed=seed)).deviation ** 2 for seed in range(40)]
    assert statistics.fmean(estimates) ** 0.5 == pytest.approx(0.03, rel=0.15)


def test_runs_that_differ_as_launches_do_have_no_spread_of_their_own() -> None:
    estimates = [run_spread(runs("a", 20, 0.0, 0.02, seed=seed)).deviation for seed in range(20)]
    assert min(estimates) == 0.0
    assert statistics.fmean(estimates) < 0.004


def test_jobs_are_pooled_and_their_speeds_do_not_matter() -> None:
    slow = [
        RunMean(job="b", run=m.run, mean=m.mean - 5.0, variance=m.variance) for m in runs("b", 6, 0.02, 0.01)
    ]
    spread = run_spread([*runs("a", 6, 0.02, 0.01), *slow])
    assert (spread.runs, spread.freedom) == (6, 10.0)
    assert 0.008 < spread.deviation < 0.04


def test_few_runs_of_a_job_have_the_default() -> None:
    for count in (0, 1, 4):
        assert run_spread(runs("a", count, 0.02, 0.01)) == DEFAULT_SPREAD
    assert run_spread([mean for job in "abcdef" for mean in runs(job, 1, 0.02, 0.01)]) == DEFAULT_SPREAD
    assert DEFAULT_SPREAD.runs is None
