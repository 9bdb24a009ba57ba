"""Models that exchange something themselves."""

import pytest
from torch import nn

from scalescope.errors import BadInput
from scalescope.worker.ablations.model_collectives import count_model_collectives, refuse_model_collectives


def test_a_model_with_synchronised_statistics_is_counted_and_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2), nn.BatchNorm1d(2))
    assert count_model_collectives(model) == 1
    with pytest.raises(BadInput, match="a SyncBatchNorm layer cannot be trained without communication"):
        refuse_model_collectives(model)


def test_other_models_are_not_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert count_model_collectives(model) == 0
    refuse_model_collectives(model)
