"""The paced workload, and what cards say of the size of every model."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from scalescope.catalog.cards import card, known_names
from scalescope.catalog.strategies.single import Single
from scalescope.catalog.workloads.paced import Paced
from scalescope.worker.strategies.single import wrap
from scalescope.worker.training.assembly import build_workload
from scalescope.worker.training.step import Workload
from scalescope.worker.workloads.paced import build
from tests.builders.results import make_trial
from tests.builders.workers import CPU, build_context, feed_of, options

_QUICK = {"forward_ms": 0.0, "backward_ms": 0.0, "layers": 3, "layer_mb": 0.5}


def test_parameters_are_as_large_as_asked_for() -> None:
    parameters = list(build(options(Paced, **_QUICK), CPU, build_context()).model.parameters())
    assert [parameter.numel() * parameter.element_size() for parameter in parameters] == [2**19] * 3
    small = build(options(Paced, **{**_QUICK, "layer_mb": 0.001}), CPU, build_context()).model
    assert {parameter.numel() for parameter in small.parameters()} == {262}


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


CASES: dict[str, list[dict[str, Any]]] = {
    "mlp": [{}, {"input_dim": 30, "hidden_dim": 50, "num_layers": 3, "output_dim": 7}],
    "paced": [{}, {"layers": 3, "layer_mb": 0.5, "first_layer_mb": 2.0}],
    "cnn": [{}, {"depth": 50, "image_size": 64}, {"depth": 34, "channels": 8}],
    "transformer": [{}, {"task": "next_token"}, {"num_layers": 3, "dim_feedforward": 100, "num_classes": 9}],
}
MANY = [(name, changes) for name, cases in CASES.items() for changes in cases]
SAMPLES = 4


class _NoGroup:
    rank, world_size = 0, 1

    def exchange(self, name: str, text: str) -> dict[int, str]:
        return {}


def built(name: str, changes: dict[str, Any]) -> tuple[Any, Workload]:
    trial = make_trial(workload=name, **changes)
    workload = build_workload(trial, _NoGroup(), CPU)  # type: ignore[arg-type]
    return trial.options(card("workloads", name)).model_size(), workload


def test_every_built_in_workload_has_a_size() -> None:
    assert set(CASES) == set(known_names("workloads"))


@pytest.mark.parametrize(
    ("name", "changes", "short"),
    [*((name, changes, False) for name, changes in MANY), *((name, CASES[name][0], True) for name in CASES)],
)
def test_parameters_are_those_of_the_model_and_at_least_so_much_is_kept_for_the_backward_pass(
    name: str, changes: dict[str, Any], short: bool
) -> None:
    kept: dict[int, int] = {}

    def record(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with FakeTensorMode(allow_non_fake_inputs=True):
        size, workload = built(name, changes)
        assert size.parameters == sum(parameter.numel() for parameter in workload.model.parameters())
        assert workload.data.synthesize is not None
        batch = workload.data.synthesize(SAMPLES, torch.Generator())
        lasting = {tensor.untyped_storage()._cdata for tensor in (*workload.model.parameters(), *batch)}
        with (
            torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=short),
        ):
            loss = workload.loss(workload.model(batch[0]), batch[1])
    assert loss.requires_grad
    held = sum(nbytes for key, nbytes in kept.items() if key not in lasting)
    assert SAMPLES * size.kept_values * (2 if short else 4) <= held
    assert size.sample_bytes * SAMPLES <= batch[0].untyped_storage().nbytes()
