"""Breakdown: refused without a GPU, and within the steps that its card announces."""

from unittest import mock

import pytest
import torch

from scalescope.catalog.benchmarks.breakdown import WATCHED_STEPS, Breakdown
from scalescope.errors import BadInput
from scalescope.experiment.recordings import breakdown_of
from scalescope.worker.benchmarks.breakdown import measure
from scalescope.worker.trace.parts import step_counts
from tests.builders.results import make_trial
from tests.builders.workers import CPU, options


def test_on_the_cpu_it_is_refused() -> None:
    with pytest.raises(BadInput, match="requires a CUDA GPU"):
        measure(breakdown_of(make_trial()), mock.Mock(), CPU, mock.Mock(), None)


def test_a_device_that_is_not_cuda_is_refused_before_anything_is_built() -> None:
    group = mock.Mock()
    with pytest.raises(BadInput):
        measure(breakdown_of(make_trial()), group, torch.device("meta"), mock.Mock(), None)
    assert group.mock_calls == []


def test_a_launch_never_takes_more_steps_than_its_card_says() -> None:
    card = options(Breakdown, "cuda")
    most = card.warmup_on("cuda") + sum(step_counts(0.0)) + 2 * WATCHED_STEPS
    assert card.steps() == most
    assert card.warmup_on("cuda") >= card.warmup_on("cpu") == card.warmup_steps
