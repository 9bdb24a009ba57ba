"""Verdicts: whether one configuration is faster than another, no different, or what would decide it.

The unit is the launch; y = ln(samples ÷ window). A difference is claimed where its test, by rounds or of two
runs Welch's, survives Holm's correction over all comparisons of a run. "No difference" is a claim as well:
two one-sided tests at 5 % (Schuirmann 1987), with Bonferroni's correction. It holds where the 1 − 0.1/m
interval of the ratio lies within ± the threshold. Everything else is inconclusive.
"""

import bisect
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from scalescope.analysis.run_spread import RunSpread
from scalescope.analysis.statistics import (
    Contrast,
    Estimate,
    common_rounds,
    contrast_of,
    contrast_of_parts,
    ratio_of_contrast,
    ratio_of_logs,
    t_probability,
    t_quantile,
)

Verdict = Literal["faster", "slower", "no difference", "inconclusive"]
FASTER: Final = "faster"
SLOWER: Final = "slower"
NO_DIFFERENCE: Final = "no difference"
INCONCLUSIVE: Final = "inconclusive"
LEAST_EFFECT = 0.01  # smaller differences are not claimed, however sure
LAUNCHES_FOR_A_CLAIM = 5
_ALPHA = 0.05
_MOST_LAUNCHES = 50  # nobody makes more of one configuration to decide a comparison
_THRESHOLD_STEP = 0.005
NO_SPREAD: Final = RunSpread(deviation=0.0, freedom=1.0)  # inside one run

Pair = tuple[Sequence[float], Sequence[float]]  # logarithms of the rates of a configuration, of its baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What would decide a comparison, if launches stay as noisy as they are."""

    launches: int | None = None  # of each side; None where no sensible number would
    interleaved: int | None = None  # launches of each side, where runs differ too much unless made in turns
    threshold: float | None = None  # at which these launches show no difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One comparison among several."""

    speedup: Estimate  # with its 95 % interval
    p_value: float | None
    smallest_detectable: float | None  # see `smallest_effect`
    verdict: Verdict
    remedy: Remedy | None = None  # of what is inconclusive


def judge_all(
    pairs: Sequence[Pair], threshold: float, spread: RunSpread = NO_SPREAD
) -> tuple[Judgement, ...]:
    """All verdicts of a run; the more comparisons, the more sure each must be.

    `spread` is what runs differ by themselves, where the two sides of a pair are launches of two runs.
    """
    contrasts = [contrast_of(*pair, extra=spread.of_a_difference) for pair in pairs]
    tests = [None if contrast is None else _p_value(contrast) for contrast in contrasts]
    comparing = Comparing(threshold, comparisons_of(pairs))
    return tuple(
        _judgement(pair, contrast, p, claimed, comparing, spread)
        for pair, contrast, p, claimed in zip(pairs, contrasts, tests, holm(tests), strict=True)
    )


def comparisons_of(pairs: Sequence[Pair]) -> int:
    """How many comparisons are tested: what has a single launch costs the others nothing."""
    return max(1, sum(contrast_of(*pair) is not None for pair in pairs))


@dataclass(frozen=True, slots=True)
class Comparing:
    """The threshold of a comparison and how many are made together."""

    threshold: float
    comparisons: int

    def is_equivalent(self, contrast: Contrast) -> bool:
        """Whether the 1 − 0.1/m interval of the ratio lies within ± the threshold."""
        ratio = self.equivalence_interval(contrast)
        assert ratio.low is not None and ratio.high is not None
        return 1.0 - self.threshold <= ratio.low and ratio.high <= 1.0 + self.threshold

    def equivalence_interval(self, contrast: Contrast) -> Estimate:
        return ratio_of_contrast(contrast, 1.0 - _ALPHA / self.comparisons)

    def claim_half_width(self, contrast: Contrast) -> float:
        return contrast.half_width(1.0 - _ALPHA / 2.0 / self.comparisons)

    def is_decided(self, contrast: Contrast) -> bool:
        """Whether a verdict other than inconclusive is sure to hold."""
        size = abs(contrast.difference)
        claimed = size > self.claim_half_width(contrast) and abs(math.expm1(size)) > LEAST_EFFECT
        return claimed or self.is_equivalent(contrast)


def _judgement(
    pair: Pair,
    contrast: Contrast | None,
    p: float | None,
    claimed: bool,
    comparing: Comparing,
    spread: RunSpread,
) -> Judgement:
    if contrast is None:
        return Judgement(
            speedup=ratio_of_logs(*pair),
            p_value=None,
            smallest_detectable=None,
            verdict=INCONCLUSIVE,
            remedy=Remedy(launches=LAUNCHES_FOR_A_CLAIM),
        )
    verdict = _verdict(contrast, claimed, comparing)
    return Judgement(
        speedup=ratio_of_contrast(contrast, 1.0 - _ALPHA / 2.0),
        p_value=p,
        smallest_detectable=smallest_effect(*pair, spread),
        verdict=verdict,
        remedy=_remedy(pair, contrast, comparing, spread) if verdict == INCONCLUSIVE else None,
    )


def _verdict(contrast: Contrast, claimed: bool, comparing: Comparing) -> Verdict:
    if claimed and abs(math.expm1(contrast.difference)) > LEAST_EFFECT:
        return FASTER if contrast.difference > 0.0 else SLOWER
    return NO_DIFFERENCE if comparing.is_equivalent(contrast) else INCONCLUSIVE


def _remedy(pair: Pair, contrast: Contrast, comparing: Comparing, spread: RunSpread) -> Remedy:
    """How many launches would decide, if the difference and the noise stay what they are."""

    common = common_rounds(pair)

    def with_launches(between: RunSpread) -> Callable[[int], bool]:
        def decides(launches: int) -> bool:
            sides = pair if common is None else [[left - right for left, right in common]]
            parts = [(statistics.variance(side) / launches, launches - 1.0) for side in sides]
            return comparing.is_decided(
                contrast_of_parts(contrast.difference, [*parts, between.of_a_difference])
            )

        return decides

    launches = _least(with_launches(spread))
    alone = launches is None and spread.deviation > 0.0
    return Remedy(
        launches=launches,
        interleaved=_least(with_launches(NO_SPREAD)) if alone else None,
        threshold=_looser_threshold(contrast, comparing),
    )


def _least(decides: Callable[[int], bool]) -> int | None:
    """The smallest number of launches that decides; more of them narrow every interval."""
    counts = range(2, _MOST_LAUNCHES + 1)
    least = bisect.bisect_left(counts, True, key=decides)
    return None if least == len(counts) else counts[least]


def _looser_threshold(contrast: Contrast, comparing: Comparing) -> float | None:
    """The smallest round threshold that holds the interval; None where it would allow anything."""
    ratio = comparing.equivalence_interval(contrast)
    assert ratio.low is not None and ratio.high is not None
    least = max(1.0 - ratio.low, ratio.high - 1.0)
    rounded = math.ceil(least / _THRESHOLD_STEP - 1e-9) * _THRESHOLD_STEP
    return rounded if rounded < 1.0 else None


def _p_value(contrast: Contrast) -> float:
    size = abs(contrast.difference)
    if contrast.variance == 0.0:
        return 1.0 if size == 0.0 else 0.0
    return 2.0 * (1.0 - t_probability(size / contrast.deviation, contrast.freedom))


def holm(p_values: Sequence[float | None]) -> list[bool]:
    """Which claims hold together (Holm 1979): the smallest p against α/m, the next against α/(m−1) …"""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    holds = [False] * len(p_values)
    for rank, (p, index) in enumerate(order):
        if p > _ALPHA / (len(order) - rank):
            break
        holds[index] = True
    return holds


def smallest_effect(
    left: Sequence[float], right: Sequence[float], spread: RunSpread = NO_SPREAD
) -> float | None:
    """(t.975 + t.8) standard errors: the relative difference that four of five such comparisons find."""
    contrast = contrast_of(left, right)
    if contrast is None:
        return None
    common = common_rounds((left, right))
    freedom = len(left) + len(right) - 2 if common is None else len(common) - 1
    deviation = math.sqrt(contrast.variance + spread.of_a_difference[0])
    half = (t_quantile(0.975, freedom) + t_quantile(0.8, freedom)) * deviation
    return math.expm1(half)
