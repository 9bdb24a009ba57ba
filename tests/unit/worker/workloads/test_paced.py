"""The `paced` workload: real parameters and gradients, slept compute."""

import pytest
import torch

from scalescope.catalog.strategies.single import Single
from scalescope.catalog.workloads.paced import Paced
from scalescope.worker.strategies.single import wrap
from scalescope.worker.workloads.paced import build
from tests.builders.workers import CPU, build_context, feed_of, options

_QUICK = {"forward_ms": 0.0, "backward_ms": 0.0, "layers": 3, "layer_mb": 0.5}


def test_parameters_are_as_large_as_asked_for() -> None:
    parameters = list(build(options(Paced, **_QUICK), CPU, build_context()).model.parameters())
    assert [parameter.numel() * parameter.element_size() for parameter in parameters] == [2**19] * 3


def test_the_smallest_layer_holds_something() -> None:
    model = build(options(Paced, **{**_QUICK, "layer_mb": 0.001}), CPU, build_context()).model
    assert {parameter.numel() for parameter in model.parameters()} == {262}


def test_gradients_become_ready_evenly() -> None:
    card = options(Paced, forward_ms=5.0, backward_ms=12.0, layers=4)
    assert card.gradient_ready_s == pytest.approx((0.003, 0.006, 0.009, 0.012))
    assert card.least_step_s() == pytest.approx(0.017)
    assert card.flops_per_sample() is None


def test_every_step_moves_every_parameter_by_the_learning_rate() -> None:
    workload = build(options(Paced, **_QUICK), CPU, build_context())
    step = wrap(
        workload, Single(), CPU, "none", lambda parameters: torch.optim.SGD(list(parameters), lr=0.25)
    )
    batches = feed_of(workload.data).batches
    for number in (1, 2, 3):
        loss = step.forward(next(batches))
        step.backward(loss)
        step.apply()
        step.clear()
        assert loss.item() == 1.0
        for parameter in workload.model.parameters():
            assert torch.equal(parameter, torch.full_like(parameter, -0.25 * number))


def test_a_batch_has_the_size_asked_for() -> None:
    inputs, targets = next(feed_of(build(options(Paced, **_QUICK), CPU, build_context()).data, 7).batches)
    assert (len(inputs), len(targets)) == (7, 7)
