"""Two groups of times are told from one wide group."""

import random

import pytest

from scalescope.analysis.modes import two_modes


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


@pytest.mark.parametrize("slow_share", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("count", [30, 100])
def test_mixtures_are_recognised_nearly_always(count: int, slow_share: float) -> None:
    rng = random.Random(2)
    recognised = sum(two_modes(mixture(rng, count, slow_share)) is not None for _ in range(300))
    assert recognised > 0.9 * 300


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0, 1.5])
@pytest.mark.parametrize("count", [20, 50, 200])
def test_one_group_is_rarely_split_however_wide(count: int, spread: float) -> None:
    rng = random.Random(3)
    split = sum(
        two_modes([rng.lognormvariate(0.0, spread) for _ in range(count)]) is not None for _ in range(300)
    )
    assert split <= 0.02 * 300


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
