"""Operations counted on tensors without data: they match the formulas, and nothing else changes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from scalescope.catalog.workloads.cnn import Cnn
from scalescope.catalog.workloads.mlp import Mlp
from scalescope.worker.counting import count_flops_per_sample, fake_copy
from scalescope.worker.training.step import Data, Workload
from scalescope.worker.workloads import cnn, mlp
from tests.builders.workers import CPU, build_context, options

WIDTH = 8
PRODUCT = 2 * WIDTH * WIDTH  # operations of a linear layer in one direction, per sample


def layer(*, bias: bool = True) -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH, bias=bias)


def workload_of(
    model: nn.Module, loss: Callable[[Any, Any], torch.Tensor] = nn.functional.mse_loss
) -> Workload:
    return Workload(model=model, data=Data(), loss=loss)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(4, WIDTH), torch.zeros(4, WIDTH)


def counted(model: nn.Module, loss: Callable[[Any, Any], torch.Tensor] = nn.functional.mse_loss) -> Any:
    return count_flops_per_sample(workload_of(model, loss), batch(), CPU)


class Through(nn.Module):
    """A linear layer, and what a function makes of its output."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = layer()
        self.function = function

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer(inputs))


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"num_layers": 1}, 1),
        ({"num_layers": 3, "hidden_dim": 24}, 6),
        ({"input_dim": 7, "output_dim": 1}, 6),
    ],
)
def test_the_operations_of_an_mlp_match_its_formula(changes: dict[str, int], count: int) -> None:
    card = options(Mlp, **{"input_dim": 16, "hidden_dim": 32, "num_layers": 2, "output_dim": 5, **changes})
    workload = mlp.build(card, CPU, build_context())
    made = workload.data.synthesize(count, torch.Generator())
    assert count_flops_per_sample(workload, made, CPU) == card.flops_per_sample()


def test_the_operations_of_a_cnn_match_its_formula() -> None:
    card = options(Cnn, image_size=64, channels=4, num_classes=7)
    workload = cnn.build(card, CPU, build_context())
    made = workload.data.synthesize(3, torch.Generator())
    assert count_flops_per_sample(workload, made, CPU) == card.flops_per_sample()


def test_a_batch_of_names_is_counted_too() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer(bias=False)

        def forward(self, inputs: torch.Tensor, scale: float) -> torch.Tensor:
            return torch.as_tensor(self.layer(inputs)).sum() * scale

    workload = workload_of(Named(), lambda output, _: output)
    names = {"inputs": torch.ones(5, WIDTH), "scale": 2.0}
    assert count_flops_per_sample(workload, names, CPU) == 2 * PRODUCT  # forward and the weights' gradients


def _looks(outputs: torch.Tensor) -> torch.Tensor:
    return outputs if outputs.sum().item() > 0 else -outputs


def _leaves(outputs: torch.Tensor) -> torch.Tensor:
    return outputs + float(outputs.detach().numpy().mean())


def test_a_model_that_needs_its_numbers_or_has_no_products_is_unknown_and_not_free() -> None:
    assert counted(Through(_looks)) is None
    assert counted(Through(_leaves)) is None
    assert counted(nn.LayerNorm(WIDTH)) is None


def _noisy() -> nn.Module:
    """A model with buffers that move and random numbers that are drawn."""
    return nn.Sequential(layer(), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5), layer())


@pytest.mark.parametrize("make", [_noisy, lambda: Through(_looks)])  # counted, and given up on the way
def test_counting_leaves_the_model_and_the_random_numbers_as_they_were(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(3)
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    owned = [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    random = torch.get_rng_state()
    inputs, targets = batch()
    count_flops_per_sample(workload_of(model), (inputs, targets), CPU)
    assert torch.equal(torch.get_rng_state(), random)
    assert [id(tensor) for tensor in (*model.parameters(), *model.buffers())] == owned
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(type(value) is torch.Tensor for value in after.values())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(inputs, torch.ones(4, WIDTH)) and not targets.any()
    nn.functional.mse_loss(model(inputs), targets).backward()  # it still trains
    assert all(parameter.grad is not None for parameter in model.parameters())


class RunningScale(nn.Module):
    """A loss that holds itself against its own running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(outputs, targets)
        self.mean = 0.9 * self.mean + 0.1 * loss.detach()
        return loss / self.mean


class Mean:
    """The same, and not a module."""

    mean: Any = 1.0

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(outputs, targets)
        self.mean = 0.9 * self.mean + 0.1 * loss.detach()
        return torch.as_tensor(loss / self.mean)


def _with_decay() -> Workload:
    """A loss that adds a penalty on the weights of the model it was made for."""
    model = layer()

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        penalty = torch.stack([parameter.pow(2).sum() for parameter in model.parameters()]).sum()
        return nn.functional.mse_loss(outputs, targets) + 0.1 * penalty

    return workload_of(model, loss)


@pytest.mark.parametrize("make", [_with_decay, lambda: workload_of(layer(), Mean())])
def test_counting_leaves_what_a_loss_holds_as_it_was(make: Callable[[], Workload]) -> None:
    workload = make()
    count_flops_per_sample(workload, batch(), CPU)
    before = [parameter.detach().clone() for parameter in workload.model.parameters()]
    workload.loss_of(workload.model, batch()).backward()
    assert all(type(parameter.grad) is torch.Tensor for parameter in workload.model.parameters())
    torch.optim.SGD(workload.model.parameters(), lr=0.1).step()
    assert not any(map(torch.equal, before, workload.model.parameters()))


def test_counting_leaves_the_buffers_of_a_loss_as_they_were() -> None:
    loss = RunningScale()
    (before,) = loss.buffers()
    assert counted(layer(), loss) is not None
    (after,) = loss.buffers()
    assert after is before
    assert torch.equal(before, torch.ones(()))


class Judges(nn.Module):
    """A loss with a product of its own, and a penalty on the weights of a model it may share."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.layer = layer(bias=False)

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        penalty = torch.stack([parameter.pow(2).sum() for parameter in self.model.parameters()]).sum()
        return nn.functional.mse_loss(self.layer(outputs), targets) + penalty


def test_a_loss_that_is_a_module_is_counted_too_and_shares_with_the_model_what_it_shared() -> None:
    model = layer()
    assert counted(model) == 2 * PRODUCT  # forward and weights
    assert counted(model, Judges(model)) == (2 + 3) * PRODUCT
    _, copied = fake_copy(workload_of(model, Judges(model)))
    assert isinstance(copied.loss, Judges)
    assert copied.loss.model is copied.model
    assert copied.model is not model
    assert isinstance(copied.model.weight, FakeTensor)


def test_a_loss_that_holds_tensors_and_is_no_module_cannot_be_counted() -> None:
    weights = torch.full((WIDTH,), 2.0)
    assert counted(layer(), lambda outputs, targets: ((outputs - targets) * weights).pow(2).mean()) is None
    assert count_flops_per_sample(_with_decay(), batch(), CPU) is None


def _attend(outputs: torch.Tensor) -> torch.Tensor:
    """By a kernel that the counter may not know."""
    split = outputs.view(len(outputs), 1, 2, WIDTH // 2)
    return nn.functional.scaled_dot_product_attention(split, split, split).reshape(len(outputs), WIDTH)


class Recurrent(nn.LSTM):
    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH, batch_first=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return torch.as_tensor(super().forward(inputs.unsqueeze(1))[0].squeeze(1))


@pytest.mark.parametrize("first", [Through(_attend), nn.Sequential(layer(), Recurrent())])
def test_a_count_that_misses_something_costly_is_none(first: nn.Module) -> None:
    found = counted(nn.Sequential(first, layer()))
    assert found is None or found > 1.2 * (3 + 2) * PRODUCT  # what the two linear layers take


def test_resizing_is_no_product() -> None:
    picture = nn.Sequential(
        layer(), nn.Unflatten(1, (1, 2, WIDTH // 2)), nn.UpsamplingBilinear2d(scale_factor=2)
    )
    assert counted(nn.Sequential(picture, nn.Flatten(), nn.Linear(4 * WIDTH, WIDTH))) is not None


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")  # the counter hooks into all modules
def test_counting_leaves_a_compiled_model_compilable() -> None:
    torch._dynamo.reset()
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(len(inputs))
        return graph.forward

    workload = workload_of(torch.compile(Through(torch.square), backend=backend))
    assert count_flops_per_sample(workload, batch(), CPU) is not None
    assert compiled == []
    workload.model(batch()[0])
    assert len(compiled) == 1
