"""What a card says of a model's size is what the model has; what it says is kept, autograd keeps."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from scalescope.catalog.cards import card, known_names
from scalescope.worker.training.assembly import build_workload
from scalescope.worker.training.step import Workload
from tests.builders.results import make_trial
from tests.builders.workers import CPU

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


@pytest.mark.parametrize(("name", "changes"), MANY)
def test_parameters_are_those_of_the_model(name: str, changes: dict[str, Any]) -> None:
    with FakeTensorMode():
        size, workload = built(name, changes)
    assert size.parameters == sum(parameter.numel() for parameter in workload.model.parameters())


@pytest.mark.parametrize(("name", "changes"), MANY)
@pytest.mark.parametrize("short", [False, True])
def test_at_least_so_much_is_kept_for_the_backward_pass(
    name: str, changes: dict[str, Any], short: bool
) -> None:
    kept: dict[int, int] = {}

    def record(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with FakeTensorMode(allow_non_fake_inputs=True):
        size, workload = built(name, changes)
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
