"""The statistics that decide a verdict: Welch's test, Holm's correction and the smallest effect."""

import math
import random
import statistics
from collections.abc import Sequence

import pytest
from scipy import stats

from scalescope.analysis.run_spread import RunSpread
from scalescope.analysis.verdicts import Judgement, holm, judge_all, smallest_effect


def p_value(left: Sequence[float], right: Sequence[float]) -> float | None:
    (judgement,) = judge_all([(left, right)], threshold=0.03)
    return judgement.p_value


@pytest.mark.parametrize("seed", range(5))
def test_the_p_value_is_that_of_welch(seed: int) -> None:
    draw = random.Random(seed)
    left = [draw.gauss(0.0, 1.0) for _ in range(draw.randint(2, 9))]
    right = [draw.gauss(seed / 5, 3.0) for _ in range(draw.randint(2, 9))]
    expected = stats.ttest_ind(left, right, equal_var=False).pvalue
    assert p_value(left, right) == pytest.approx(expected, rel=1e-9, abs=1e-13)
    assert p_value(right, left) == p_value(left, right)


def test_where_nothing_varies_or_there_is_one_launch() -> None:
    assert p_value([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert p_value([1.0, 1.0], [2.0, 2.0]) == 0.0
    for left, right in (([1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0])):
        assert p_value(left, right) is None and smallest_effect(left, right) is None
    (judgement,) = judge_all([([0.7], [0.0])], threshold=0.03)
    assert (judgement.verdict, judgement.p_value) == ("inconclusive", None)
    assert not judgement.speedup.has_interval


def test_holm_by_hand() -> None:
    # 0.01 ≤ 0.05/4, 0.012 ≤ 0.05/3, 0.03 > 0.05/2: it and all larger ones fall, though 0.04 ≤ 0.05/1.
    assert holm([0.04, 0.01, 0.03, 0.012]) == [False, True, False, True]
    assert holm([0.013, 0.2, 0.9, 0.9]) == [False] * 4  # 0.013 > 0.05/4
    assert holm([0.05]) == [True]
    assert holm([]) == []
    assert holm([None, 0.05, None]) == [False, True, False]


def test_the_smallest_effect_is_that_of_the_formula() -> None:
    left, right = [0.0, 0.02, 0.01, 0.03, 0.00], [0.01, 0.05, 0.03, 0.02, 0.04]
    spread = math.sqrt((statistics.variance(left) + statistics.variance(right)) / 2.0)
    expected = (stats.t.ppf(0.975, 8) + stats.t.ppf(0.8, 8)) * spread * math.sqrt(2.0 / 5.0)
    assert smallest_effect(left, right) == pytest.approx(math.expm1(expected))
    few, many = [0.00, 0.02], [0.00, 0.02] * 5
    both = smallest_effect(few, many)
    least, most = smallest_effect(many, many), smallest_effect(few, few)
    assert least is not None and both is not None and most is not None
    assert least < both < most


def launches(seed: int, count: int, deviation: float, shift: float = 0.0) -> list[float]:
    draw = random.Random(seed)
    return [shift + draw.gauss(0.0, deviation) for _ in range(count)]


def spread_by(distance: float, mean: float = 0.0) -> list[float]:
    """Six launches at a distance from their mean."""
    return [mean + distance, mean - distance] * 3


def judged(left: list[float], right: list[float], threshold: float = 0.03) -> Judgement:
    (judgement,) = judge_all([(left, right)], threshold)
    return judgement


def test_no_difference_is_two_one_sided_tests() -> None:
    outcomes = []
    for seed in range(8):
        left, right = launches(seed, 6, 0.016, 0.01), launches(seed + 100, 6, 0.016)
        if (p_value(left, right) or 0.0) > 0.05:
            least, most = ([y + math.log(bound) for y in right] for bound in (0.97, 1.03))
            larger = stats.ttest_ind(left, least, equal_var=False, alternative="greater")
            smaller = stats.ttest_ind(left, most, equal_var=False, alternative="less")
            outcomes.append(bool(max(larger.pvalue, smaller.pvalue) < 0.05))
            assert (judged(left, right).verdict == "no difference") is outcomes[-1]
    assert set(outcomes) == {True, False}


def test_a_difference_near_the_threshold_is_not_called_none() -> None:
    """It could be detected and was not significant, which is not the same as its absence."""
    judgement = judged(spread_by(0.0147, 0.019), spread_by(0.0147))
    assert judgement.p_value is not None and judgement.p_value > 0.05
    assert judgement.smallest_detectable is not None and judgement.smallest_detectable <= 0.03
    assert judgement.verdict == "inconclusive"


def test_many_comparisons_need_more_for_no_difference() -> None:
    pair = launches(1, 6, 0.012), launches(2, 6, 0.012)
    assert judged(*pair).verdict == "no difference"
    assert {judgement.verdict for judgement in judge_all([pair] * 50, 0.03)} == {"inconclusive"}
    single = ([0.0], [0.0])  # not tested, and costs the others nothing
    assert judge_all([pair, *[single] * 49], 0.03)[0].verdict == "no difference"


def test_what_is_inconclusive_says_how_many_launches_would_decide() -> None:
    left, right = spread_by(0.02, 0.01), spread_by(0.02)
    judgement = judged(left, right)
    assert judgement.verdict == "inconclusive"
    remedy = judgement.remedy
    assert remedy is not None and remedy.launches is not None and remedy.launches > 6
    assert remedy.interleaved is None
    assert remedy.threshold is not None and judged(left, right, remedy.threshold).verdict == "no difference"
    assert judged(left, right, remedy.threshold - 0.006).verdict == "inconclusive"
    assert judged(spread_by(0.5), spread_by(0.5)).remedy.launches is None  # type: ignore[union-attr]
    assert judged([0.0], [0.0, 0.0]).remedy is not None
    assert judged([0.0] * 3, [0.0] * 3).remedy is None


def test_the_spread_between_runs_widens_every_interval_and_only_turns_decide() -> None:
    pair = launches(7, 6, 0.004), launches(8, 6, 0.004)
    spread = RunSpread(deviation=0.03, freedom=20.0, runs=21)
    within, between = judged(*pair), judge_all([pair], 0.03, spread)[0]
    assert (within.verdict, between.verdict) == ("no difference", "inconclusive")
    assert between.speedup.value == within.speedup.value
    assert between.speedup.high is not None and within.speedup.high is not None
    # √(2 · 0.03²) · t.975(about 20), plus what the launches add
    assert between.speedup.high - 1.0 == pytest.approx(0.03 * math.sqrt(2.0) * 2.086, rel=0.1)
    assert between.speedup.high > within.speedup.high
    remedy = between.remedy
    assert remedy is not None and remedy.launches is None and remedy.interleaved == 2


CALM = (0.0, 0.01, -0.01, 0.0, 0.0)


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(0.8, "faster"), (1.25, "slower"), (1.0, "no difference"), (0.995, "no difference")],
)
def test_verdicts_of_calm_launches(factor: float, verdict: str) -> None:
    (judgement,) = judge_all([([rate - math.log(factor) for rate in CALM], CALM)], threshold=0.03)
    assert judgement.verdict == verdict
    assert judgement.speedup.value == pytest.approx(1.0 / factor)


def test_a_difference_below_one_percent_is_not_claimed_however_sure() -> None:
    still = (0.0, 0.0, 0.0, 0.0, 1e-7)
    (judgement,) = judge_all([([rate + 0.005 for rate in still], still)], threshold=0.03)
    assert judgement.p_value is not None and judgement.p_value < 1e-6
    assert judgement.verdict == "no difference"


def test_a_claim_must_survive_the_number_of_comparisons() -> None:
    """What holds alone may fall among others; it is not called equal then, for it does not look equal."""
    wide = [-math.log(step) for step in (0.940, 0.975, 0.955, 0.990, 0.965)]
    (alone,) = judge_all([(wide, CALM)], threshold=0.03)
    among = judge_all([(wide, CALM), *[(CALM, CALM)] * 38], threshold=0.03)
    assert alone.verdict == "faster"
    assert (among[0].p_value, among[0].verdict) == (alone.p_value, "inconclusive")


def test_identical_launches_are_called_different_in_five_of_a_hundred_runs() -> None:
    """The rate is that of runs with any false claim, whatever the number of comparisons: Holm's promise."""
    draw = random.Random(2026)
    wrong = 0
    for _ in range(300):
        now, *others = ([draw.gauss(3.0, 0.05) for _ in range(5)] for _ in range(5))
        wrong += any(holm([p_value(rates, now) for rates in others]))
    assert 0.01 <= wrong / 300 <= 0.08
