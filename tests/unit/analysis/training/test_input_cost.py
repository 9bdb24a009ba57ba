"""What input adds to a step."""

import pytest

from scalescope.analysis.training.activity import RankActivity
from scalescope.analysis.training.input_cost import input_cost
from scalescope.experiment.ablations import with_preloaded_input
from tests.builders.results import make_configuration, make_trial

LOADED = make_trial(num_workers=0)
FULL = make_configuration(LOADED, 0.100)
PRELOADED = make_configuration(with_preloaded_input(LOADED), 0.060)


def cost(input_s: float | None, *, has_processes: bool = False) -> float:
    host = RankActivity(rank=0, host_s={} if input_s is None else {"input": input_s})
    estimate = input_cost(FULL, PRELOADED, (host,), has_processes=has_processes)
    assert estimate is not None
    return estimate.value


def test_input_costs_what_preloaded_batches_save() -> None:
    assert cost(0.045) == pytest.approx(0.040)


def test_it_costs_no_more_than_the_host_spends_on_it() -> None:
    assert cost(0.001) == pytest.approx(0.001)


def test_processes_that_prepare_batches_take_cores_from_compute() -> None:
    assert cost(0.001, has_processes=True) == pytest.approx(0.040)


def test_without_the_host_s_times_the_difference_counts() -> None:
    assert cost(None) == pytest.approx(0.040)


def test_a_configuration_is_not_its_own_ablation() -> None:
    assert input_cost(FULL, FULL, (), has_processes=False) is None
    assert input_cost(FULL, None, (), has_processes=False) is None
