"""How many ranks pay off, and what samples cost."""

import dataclasses

import pytest

from scalescope.analysis.prediction.forecasts.forecast import forecast
from scalescope.analysis.prediction.forecasts.worth import most_worth, worth_of
from scalescope.analysis.prediction.prediction import Prediction, Range

from .made_inputs import made_inputs


def row(ranks: int, efficiency: float) -> Prediction:
    inputs = made_inputs()
    made = forecast(inputs, inputs.job.setup(ranks))
    share = Range(value=efficiency, low=efficiency, high=efficiency)
    rate = Range(value=1000.0 * ranks * efficiency, low=1.0, high=1.0)
    return dataclasses.replace(made, efficiency=share, samples_per_s=rate)


def test_added_ranks_are_held_against_ranks_alone() -> None:
    answers = worth_of([row(2, 0.9), row(8, 0.6), row(4, 0.8)])
    assert [worth.ranks for worth in answers] == [2, 4, 8]
    expected = [(1.8 - 1.0) / 1, (3.2 - 1.8) / 2, (4.8 - 3.2) / 4]
    assert [worth.marginal for worth in answers] == pytest.approx(expected)
    assert [worth.is_worth_it for worth in answers] == [True, True, False]
    assert most_worth(answers) == 4


def test_what_follows_on_a_poor_addition_is_not_recommended() -> None:
    answers = worth_of([row(2, 0.9), row(4, 0.6), row(8, 0.7)])
    assert [worth.is_worth_it for worth in answers] == [True, False, True]
    assert most_worth(answers) == 2


def test_slower_than_one_rank_is_worth_nothing() -> None:
    assert most_worth(worth_of([row(2, 0.4)])) is None


def test_one_rank_alone_is_worth_it() -> None:
    assert most_worth(worth_of([row(1, 1.0)])) == 1


def test_the_cost_is_of_all_gpus() -> None:
    (worth,) = worth_of([row(8, 0.5)], gpu_hour_price=3.0)
    hours = 1e6 / 4000.0 / 3600.0
    assert worth.cost_per_million == pytest.approx(hours * 8 * 3.0)
    assert worth_of([row(8, 0.5)])[0].cost_per_million is None
