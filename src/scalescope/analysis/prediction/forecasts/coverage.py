"""Coverage: how often intervals held, with its exact binomial interval (Clopper and Pearson 1934)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

_TAIL = 0.025  # on either side


@dataclass(frozen=True, slots=True, kw_only=True)
class Proportion:
    """A share of so many, with its 95 % interval."""

    value: float
    low: float
    high: float


def binomial_interval(successes: int, count: int) -> Proportion:
    """The shares under which so many successes are not surprising on either side."""
    low = 0.0 if successes == 0 else _where(lambda share: _at_least(successes, count, share) - _TAIL)
    high = 1.0 if successes == count else _where(lambda share: _TAIL - _at_most(successes, count, share))
    return Proportion(value=successes / count, low=low, high=high)


def _where(rising: Callable[[float], float]) -> float:
    """Where a function that rises crosses zero."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if rising(middle) > 0.0 else (middle, high)
    return (low + high) / 2.0


def _at_least(successes: int, count: int, share: float) -> float:
    return math.fsum(_probability(k, count, share) for k in range(successes, count + 1))


def _at_most(successes: int, count: int, share: float) -> float:
    return math.fsum(_probability(k, count, share) for k in range(successes + 1))


def _probability(successes: int, count: int, share: float) -> float:
    if share in (0.0, 1.0):
        return float(successes == count * share)
    log = math.lgamma(count + 1) - math.lgamma(successes + 1) - math.lgamma(count - successes + 1)
    return math.exp(log + successes * math.log(share) + (count - successes) * math.log1p(-share))
