"""How memory grows with the batch, and the search for the largest batch that fits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_TOLERANCE = 0.02
MOST_TRIES = 12
_TRIES_BY_PREDICTION = 6  # after that the interval is halved, without the line
LARGEST_BATCH = 2**31
_UP, _DOWN = 2, 4  # how much further each time the line turns out wrong; what fails is learnt soonest
_KINK = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLine:
    """peak = base + slope × batch, as seen up to a largest batch."""

    base: float
    slope: float
    largest: int

    def largest_batch(self, capacity: int) -> int | None:
        """The largest batch whose peak stays within the capacity; None where the line does not grow."""
        if self.slope <= 0:
            return None
        return max(0, min(LARGEST_BATCH, math.floor((capacity - self.base) / self.slope)))


def fit_line(points: Sequence[tuple[int, int]]) -> FittedLine | None:
    """Least squares over (batch, bytes); None below two different batches.

    With few samples the peak may lie elsewhere, for instance in the optimizer, and not grow at all. Small
    batches that do not lie on the line of the large ones are therefore left out.
    """
    ordered = sorted(points)
    while len({batch for batch, _ in ordered}) >= 2:
        line = _least_squares(ordered)
        spread = max(size for _, size in ordered) - min(size for _, size in ordered)
        miss = max(abs(size - line.base - line.slope * batch) for batch, size in ordered)
        fewer = [point for point in ordered if point[0] > ordered[0][0]]
        if miss <= _KINK * spread or len({batch for batch, _ in fewer}) < 2:
            return line
        ordered = fewer
    return None


def _least_squares(points: Sequence[tuple[int, int]]) -> FittedLine:
    middle = math.fsum(batch for batch, _ in points) / len(points)
    mean = math.fsum(size for _, size in points) / len(points)
    spread = math.fsum((batch - middle) ** 2 for batch, _ in points)
    slope = math.fsum((batch - middle) * (size - mean) for batch, size in points) / spread
    return FittedLine(base=mean - slope * middle, slope=slope, largest=max(batch for batch, _ in points))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """The largest batch seen to fit and the smallest seen not to; 0 fits always, None is not known.

    There are only `most` samples, where the data says so or a batch was larger than all of them.
    """

    fits: int
    fails: int | None
    most: int | None = None

    @property
    def is_all(self) -> bool:
        """Whether all samples there are fit at once."""
        return self.most is not None and self.fits >= self.most

    @property
    def is_closed(self) -> bool:
        """Whether the two are so close that no further try is needed."""
        if self.fails is None or self.is_all:
            return self.is_all or self.fits >= LARGEST_BATCH
        return self.fails - self.fits <= max(1, int(self.fits * _TOLERANCE))


def next_batch(bracket: Bracket, predicted: int | None, tries: int) -> int | None:
    """The batch to try next, of no more samples than there are; None once enough was tried."""
    batch = _next_batch(bracket, predicted, tries)
    return batch if batch is None or bracket.most is None else min(batch, bracket.most)


def _next_batch(bracket: Bracket, predicted: int | None, tries: int) -> int | None:
    low, high = bracket.fits, bracket.fails
    if bracket.is_closed or tries >= MOST_TRIES:
        return None
    if high is not None and tries >= _TRIES_BY_PREDICTION:
        return (low + high) // 2
    if predicted is None:
        return min(LARGEST_BATCH, 2 * low or 1) if high is None else (low + high) // 2
    step = max(1, int(low * _TOLERANCE), int(predicted * _TOLERANCE))
    if high is None:
        beyond = low + max(step, _UP * (low - predicted))
        return min(LARGEST_BATCH, max(predicted, beyond))
    # Next to an edge the line adds nothing: a step away from it closes the bracket, or moves it far.
    wanted = max(predicted, low + max(step, _UP * (low - predicted)))
    wanted = min(wanted, high - max(step, _DOWN * (predicted - high)))
    return wanted if low < wanted < high else (low + high) // 2
