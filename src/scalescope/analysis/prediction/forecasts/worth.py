"""Worth: how many ranks pay off, and what a million samples cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.prediction.prediction import Prediction

LEAST_MARGINAL = 0.5  # of what another rank would deliver alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What a number of ranks adds to the largest smaller one that is worth it."""

    ranks: int
    beyond: int  # the number of ranks that it is held against; 1 where no smaller one is worth it
    marginal: float  # what the added ranks deliver ÷ what as many would alone
    cost_per_million: float | None = None  # samples; in the currency of the price

    @property
    def is_worth_it(self) -> bool:
        """Decided by the figure that is shown, in whole percent."""
        return round(100.0 * self.marginal) >= round(100.0 * LEAST_MARGINAL)


def worth_of(predictions: Sequence[Prediction], gpu_hour_price: float | None = None) -> tuple[Worth, ...]:
    """Each number of ranks against the largest smaller one that is worth it, or else against one rank.

    A poor addition is made up for by later ones: the second rank often costs more than all others, since
    communication begins with it.
    """
    ranks, delivered = 1, 1.0
    answers = []
    for prediction in sorted(predictions, key=lambda prediction: prediction.setup.world_size):
        size = prediction.setup.world_size
        speedup = prediction.efficiency.value * size
        marginal = (speedup - delivered) / (size - ranks) if size > ranks else prediction.efficiency.value
        cost = None if gpu_hour_price is None else cost_per_million(prediction, gpu_hour_price)
        answers.append(Worth(ranks=size, beyond=ranks, marginal=marginal, cost_per_million=cost))
        if answers[-1].is_worth_it:
            ranks, delivered = size, speedup
    return tuple(answers)


def cost_per_million(prediction: Prediction, gpu_hour_price: float) -> float:
    """What a million samples cost when every rank has a GPU of that price."""
    hours = 1e6 / prediction.samples_per_s.value / 3600.0
    return hours * prediction.setup.world_size * gpu_hour_price


def most_worth(answers: Sequence[Worth]) -> int | None:
    """The largest number of ranks that is worth it; None where no number is."""
    return max((worth.ranks for worth in answers if worth.is_worth_it), default=None)
