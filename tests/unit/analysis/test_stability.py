"""Stability of ranks: what noise does not explain, and how seldom noise is mistaken for it."""

import math
import random
from collections.abc import Callable

import pytest

from scalescope.analysis.stability import changed_ranks, drifting_ranks


def white(draw: random.Random, steps: int, deviation: float = 0.02) -> list[float]:
    return [0.010 * (1.0 + draw.gauss(0.0, deviation)) for _ in range(steps)]


@pytest.mark.parametrize(("ranks", "steps"), [(1, 10), (64, 10), (64, 40)])
def test_white_noise_is_rarely_called_drift(ranks: int, steps: int) -> None:
    launches = 100 if ranks < 10 else 40
    draw = random.Random(18)
    called = sum(bool(drifting_ranks([white(draw, steps) for _ in range(ranks)])) for _ in range(launches))
    assert called <= 0.05 * launches  # 1 % is allowed for, of all ranks together


def test_timers_and_stalls_are_no_drift() -> None:
    draw = random.Random(18)
    called = sum(bool(drifting_ranks([[draw.choice((0.016, 0.020)) for _ in range(40)]])) for _ in range(100))
    assert called <= 5
    times = white(random.Random(1), 40, 0.002)
    times[30] = 1.0
    assert drifting_ranks([times]) == ()


@pytest.mark.parametrize(
    "factor",
    [lambda share: 1.0 + 0.1 * share, lambda share: 1.04 if share >= 0.5 else 1.0],
    ids=["slower and slower", "slower at once"],
)
@pytest.mark.parametrize("seed", range(2))
def test_drift_beyond_the_noise_is_found_on_its_rank(factor: Callable[[float], float], seed: int) -> None:
    draw = random.Random(seed)
    ranks = [white(draw, 60, 0.01) for _ in range(8)]
    ranks[5] = [step * factor(number / 60) for number, step in enumerate(ranks[5])]
    assert drifting_ranks(ranks) == (5,)


def noise(draw: random.Random, launches: int, ranks: int, deviation: float) -> list[list[float | None]]:
    return [[draw.gauss(0.0, deviation) for _ in range(ranks)] for _ in range(launches)]


@pytest.mark.parametrize(("launches", "ranks"), [(5, 8), (1, 64)])
def test_noise_of_matrix_products_is_no_change(launches: int, ranks: int) -> None:
    """One of 64 products that repeat to 1 % always differs by more than 2 %."""
    draw = random.Random(18)
    called = [any(changed_ranks(noise(draw, launches, ranks, 0.01))) for _ in range(40)]
    assert sum(called) <= 4


def test_a_product_that_changes_is_found() -> None:
    changes = noise(random.Random(18), 5, 4, 0.005)
    changes[2][3] = math.log(0.8)
    assert changed_ranks(changes) == [(), (), (3,), (), ()]
    assert changed_ranks([[0.05], [0.051], [0.049], [None]]) == [(0,), (0,), (0,), ()]


@pytest.mark.parametrize(("change", "changed"), [(0.019, ()), (0.021, (0,)), (-0.021, (0,)), (None, ())])
def test_a_single_launch_is_judged_by_two_percent(change: float | None, changed: tuple[int, ...]) -> None:
    assert changed_ranks([[change]]) == [changed]
