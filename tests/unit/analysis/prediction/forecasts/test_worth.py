"""How many ranks pay off, and what samples cost."""

import dataclasses

import pytest

from scalescope.analysis.prediction.forecasts.forecast import forecast
from scalescope.analysis.prediction.forecasts.worth import LEAST_MARGINAL, most_worth, worth_of
from scalescope.analysis.prediction.prediction import Prediction, Range
from tests.builders.profiles import made_inputs


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
    assert most_worth(answers) == 4


def test_a_second_rank_that_costs_much_does_not_hide_what_others_deliver() -> None:
    answers = worth_of([row(2, 0.73), row(8, 0.68), row(64, 0.66), row(1024, 0.3)])
    assert answers[0].marginal < LEAST_MARGINAL < answers[1].marginal
    assert most_worth(answers) == 64


def test_ranks_that_do_not_make_up_for_a_poor_addition_are_not_worth_it() -> None:
    assert most_worth(worth_of([row(2, 0.9), row(4, 0.5), row(6, 0.52)])) == 2
    assert most_worth(worth_of([row(2, 0.6), row(4, 0.55)])) is None


def test_slower_than_one_rank_is_worth_nothing() -> None:
    assert most_worth(worth_of([row(2, 0.4)])) is None


def test_one_rank_alone_is_worth_it() -> None:
    assert most_worth(worth_of([row(1, 1.0)])) == 1


def test_the_cost_is_of_all_gpus() -> None:
    (worth,) = worth_of([row(8, 0.5)], gpu_hour_price=3.0)
    hours = 1e6 / 4000.0 / 3600.0
    assert worth.cost_per_million == pytest.approx(hours * 8 * 3.0)
    assert worth_of([row(8, 0.5)])[0].cost_per_million is None
