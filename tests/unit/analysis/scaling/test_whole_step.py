"""One rank's parts and what more ranks add are together the step of N ranks."""

import math

import pytest
from hypothesis import given, settings

from scalescope.analysis.scaling.waterfall import Waterfall
from scalescope.analysis.scaling.whole_step import whole_step
from scalescope.analysis.training.step_waterfall import BACKWARD, COPIES, FORWARD
from scalescope.experiment.ablations import single_rank_baseline
from tests.builders.results import waterfalls
from tests.builders.steps import make_step

PARTS_MS = {FORWARD: 2.0, BACKWARD: 5.0, COPIES: 0.0}


@given(waterfalls())
@settings(deadline=None)
def test_all_parts_add_up_to_the_measured_step(waterfall: Waterfall) -> None:
    one_rank = make_step(single_rank_baseline(waterfall.trial), PARTS_MS, ideal_ms=1.0)
    whole = whole_step(waterfall, [one_rank])
    assert whole is not None
    assert math.fsum(part.time_s.value for part in whole.parts) == pytest.approx(waterfall.step_s)
    before = math.fsum(part.time_s.value for part in whole.parts_of("one_rank"))
    assert before == pytest.approx(whole.one_rank_s)
    assert whole.lost_before_s is not None and whole.ideal_s is not None
    assert whole.ideal_s + whole.lost_before_s + whole.lost_by_ranks_s == pytest.approx(waterfall.step_s)
    assert whole.ideal_s / whole.one_rank_s == pytest.approx(1 / 7)
    assert len({part.label for part in whole.parts}) == len(whole.parts)


@given(waterfalls())
@settings(deadline=None, max_examples=5)
def test_without_the_parts_of_its_own_one_rank_there_is_no_whole(waterfall: Waterfall) -> None:
    assert whole_step(waterfall, []) is None
    assert whole_step(waterfall, [make_step(waterfall.trial, PARTS_MS)]) is None
