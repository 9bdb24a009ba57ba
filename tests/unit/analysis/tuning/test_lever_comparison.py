"""Verdicts of a comparison: what is claimed, what is called equal, and how often that is wrong."""

import dataclasses
import math
import random

import pytest

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.tuning.losses import compare_all

from ..made_results import make_configuration, make_trial

BASELINE = make_trial(batch_size=10)
CALM = (0.0100, 0.0101, 0.0099, 0.0100, 0.0100)


def candidate(number: int, *step_times_s: float) -> Configuration:
    """A configuration of a trial of its own."""
    return make_configuration(make_trial(batch_size=10, seed=number), *step_times_s)


def times(factor: float, values: tuple[float, ...] = CALM) -> tuple[float, ...]:
    return tuple(factor * value for value in values)


def with_losses(configuration: Configuration, *losses: float) -> Configuration:
    launches = tuple(dataclasses.replace(launch, losses=losses) for launch in configuration.launches)
    return dataclasses.replace(configuration, launches=launches)


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(0.8, "faster"), (1.25, "slower"), (1.0, "no difference"), (0.995, "no difference")],
)
def test_verdicts_of_calm_launches(factor: float, verdict: str) -> None:
    (comparison,) = compare_all(
        make_configuration(BASELINE, *CALM), [candidate(1, *times(factor))], threshold=0.03
    )
    assert comparison.verdict == verdict
    assert comparison.speedup.value == pytest.approx(1.0 / factor)
    assert comparison.speedup.low is not None and comparison.speedup.high is not None
    assert comparison.speedup.low < 1.0 / factor < comparison.speedup.high


def test_a_difference_below_one_percent_is_not_claimed_however_sure() -> None:
    still = (0.01, 0.01, 0.01, 0.01, 0.010000001)
    (comparison,) = compare_all(
        make_configuration(BASELINE, *still), [candidate(1, *times(0.995, still))], threshold=0.03
    )
    assert comparison.p_value is not None and comparison.p_value < 1e-6
    assert comparison.verdict == "no difference"


def test_noisy_launches_decide_nothing() -> None:
    noisy = (0.010, 0.014, 0.008, 0.012, 0.011)
    (comparison,) = compare_all(
        make_configuration(BASELINE, *noisy), [candidate(1, *times(0.97, noisy))], threshold=0.03
    )
    assert comparison.smallest_detectable is not None and comparison.smallest_detectable > 0.03
    assert comparison.verdict == "inconclusive"


def test_one_launch_of_each_decides_nothing() -> None:
    (comparison,) = compare_all(make_configuration(BASELINE, 0.01), [candidate(1, 0.005)], threshold=0.03)
    assert comparison.verdict == "inconclusive"
    assert comparison.p_value is None
    assert not comparison.speedup.has_interval


def test_a_claim_must_survive_the_number_of_comparisons() -> None:
    """What holds alone may fall among others; it is not called equal then, for it does not look equal."""
    baseline = make_configuration(BASELINE, *CALM)
    wide = (0.00940, 0.00975, 0.00955, 0.00990, 0.00965)
    alone = compare_all(baseline, [candidate(1, *wide)], threshold=0.03)
    others = [candidate(number, *CALM) for number in range(2, 40)]
    among = compare_all(baseline, [candidate(1, *wide), *others], threshold=0.03)
    assert alone[0].verdict == "faster"
    assert among[0].p_value == alone[0].p_value
    assert among[0].verdict == "inconclusive"
    assert {comparison.verdict for comparison in among[1:]} == {"no difference"}


def test_two_slow_launches_on_a_noisy_machine_prove_nothing() -> None:
    noisy = make_configuration(BASELINE, 0.010, 0.014, 0.008, 0.012, 0.011)
    (comparison,) = compare_all(noisy, [candidate(1, 0.0125, 0.019)], 0.03)
    assert comparison.speedup.high is not None and comparison.speedup.high > 1.0
    assert comparison.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("before", "after", "change", "differs"),
    [
        ((9.0, 1.0, 1.0, 1.0, 1.0, 1.0), (0.0, 1.0, 1.0, 1.0, 1.0, 1.0), 0.0, False),  # the last five count
        ((2.0,), (2.03,), 0.015, False),
        ((2.0,), (2.05,), 0.025, True),
        ((2.0,), (1.9,), -0.05, True),
        # A faster one makes more steps in the same time: only those both made are held against each other.
        ((2.0, 1.0, 1.0, 1.0), (2.0, 1.0, 1.1, 1.1, 0.5, 0.4, 0.3, 0.2), 0.1, True),
    ],
)
def test_the_loss_at_the_end_is_compared(
    before: tuple[float, ...], after: tuple[float, ...], change: float, differs: bool
) -> None:
    baseline = with_losses(make_configuration(BASELINE, *CALM), *before)
    (comparison,) = compare_all(baseline, [with_losses(candidate(1, *CALM), *after)], 0.03)
    assert comparison.loss_change == pytest.approx(change)
    assert comparison.loss_differs is differs


@pytest.mark.parametrize(("before", "after"), [((), (1.0,)), ((1.0,), ()), ((0.0,), (1.0,))])
def test_an_unknown_loss_differs_from_nothing(before: tuple[float, ...], after: tuple[float, ...]) -> None:
    baseline = with_losses(make_configuration(BASELINE, *CALM), *before)
    (comparison,) = compare_all(baseline, [with_losses(candidate(1, *CALM), *after)], 0.03)
    assert comparison.loss_change is None
    assert not comparison.loss_differs


@dataclasses.dataclass(frozen=True)
class Made:
    """As much of a configuration as a comparison looks at, so that thousands are cheap."""

    trial: object
    log_rates: list[float]
    launches: tuple[()] = ()


@pytest.mark.parametrize(("candidates", "spread"), [(1, 0.05), (4, 0.05)])
def test_identical_launches_are_called_different_in_five_of_a_hundred_runs(
    candidates: int, spread: float
) -> None:
    """The rate is that of runs with any false claim, whatever the number of comparisons: Holm's promise."""
    draw = random.Random(2026)
    runs, wrong = 1200 // candidates, 0
    for _ in range(runs):
        made = [Made(BASELINE, [draw.gauss(3.0, spread) for _ in range(5)]) for _ in range(1 + candidates)]
        comparisons = compare_all(made[0], made[1:], threshold=0.03)  # type: ignore[arg-type]
        wrong += any(comparison.verdict in ("faster", "slower") for comparison in comparisons)
    rate, error = wrong / runs, math.sqrt(0.05 * 0.95 / runs)
    print(f"{candidates} comparisons a run: {wrong} of {runs} runs with a false claim ({rate:.1%})")
    assert 0.05 - 4 * error - 0.015 < rate < 0.05 + 4 * error
