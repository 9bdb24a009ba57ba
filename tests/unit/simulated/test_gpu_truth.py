"""Findings about simulated steps of a GPU: what is wrong is named first, and costs what it really costs."""

import random

import pytest

from tests.simulated.gpu_steps import KINDS, Kind
from tests.simulated.gpu_truth import simulated_case


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_is_named_first_and_costs_what_it_costs(kind: Kind) -> None:
    case = simulated_case(kind, random.Random(1))
    assert case.is_first
    assert not case.above_terms
    for claimed_s, true_s in case.claims.values():
        assert claimed_s == pytest.approx(true_s, rel=0.2, abs=0.02 * case.step_s)
