"""Worth: how many ranks pay off, and what samples cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.prediction.prediction import Prediction

LEAST_MARGINAL = 0.5  # of what another rank would deliver alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What a number of ranks adds to the one before, in what ranks deliver alone."""

    ranks: int
    marginal: float  # efficiency of the ranks that were added
    cost_per_million: float | None = None  # samples; in the currency of the price


def worth_of(predictions: Sequence[Prediction], gpu_hour_price: float | None = None) -> tuple[Worth, ...]:
    """Each number of ranks against the next smaller one, the first against one rank."""
    ordered = sorted(predictions, key=lambda prediction: prediction.setup.world_size)
    ranks, delivered = 1, 1.0
    answers = []
    for prediction in ordered:
        size = prediction.setup.world_size
        speedup = prediction.efficiency.value * size
        marginal = (speedup - delivered) / (size - ranks) if size > ranks else prediction.efficiency.value
        cost = None if gpu_hour_price is None else cost_per_million(prediction, gpu_hour_price)
        answers.append(Worth(ranks=size, marginal=marginal, cost_per_million=cost))
        ranks, delivered = size, speedup
    return tuple(answers)


def cost_per_million(prediction: Prediction, gpu_hour_price: float) -> float:
    """What a million samples cost when every rank has a GPU of that price."""
    hours = 1e6 / prediction.samples_per_s.value / 3600.0
    return hours * prediction.setup.world_size * gpu_hour_price


def most_worth(answers: Sequence[Worth]) -> int | None:
    """The number of ranks with the largest surplus over the least that added ranks must deliver; None where
    no number has one.

    A poor addition is accepted where later ones make up for it: the second rank often costs more than all
    others, since communication begins with it.
    """
    best, most, gain, before = None, 0.0, 0.0, 1
    for worth in answers:
        gain += (worth.marginal - LEAST_MARGINAL) * (worth.ranks - before)
        if gain >= most:
            best, most = worth.ranks, gain
        before = worth.ranks
    return best
