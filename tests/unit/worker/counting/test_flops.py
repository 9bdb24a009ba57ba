"""Operations counted on tensors without data: they match the formulas, and nothing else changes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from scalescope.catalog.workloads.cnn import Cnn
from scalescope.catalog.workloads.mlp import Mlp
from scalescope.worker.counting.fake_copy import fake_copy
from scalescope.worker.counting.flops import count_flops_per_sample
from scalescope.worker.training.step import Data, Workload
from scalescope.worker.workloads import cnn, mlp
from tests.builders.workers import CPU, build_context, options

WIDTH = 8


def workload_of(
    model: nn.Module, loss: Callable[[Any, Any], torch.Tensor] = nn.functional.mse_loss
) -> Workload:
    return Workload(model=model, data=Data(), loss=loss)


def batch(count: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(count, WIDTH), torch.zeros(count, WIDTH)


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
            self.layer = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, inputs: torch.Tensor, scale: float) -> torch.Tensor:
            return torch.as_tensor(self.layer(inputs)).sum() * scale

    workload = workload_of(Named(), lambda output, _: output)
    counted = count_flops_per_sample(workload, {"inputs": torch.ones(5, WIDTH), "scale": 2.0}, CPU)
    assert counted == 4 * WIDTH * WIDTH  # forward and the weights' gradients


class Looks(nn.Module):
    """A model that decides by its own numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(inputs)
        if outputs.sum().item() > 0:
            return outputs
        return -outputs


class Leaves(nn.Module):
    """A model that leaves PyTorch on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(inputs)
        return outputs + float(outputs.detach().numpy().mean())


@pytest.mark.parametrize("kind", [Looks, Leaves])
def test_a_model_that_needs_its_numbers_cannot_be_counted(kind: type[nn.Module]) -> None:
    assert count_flops_per_sample(workload_of(kind()), batch(), CPU) is None


def test_a_model_without_products_is_unknown_and_not_free() -> None:
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(WIDTH))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs * self.factor

    assert count_flops_per_sample(workload_of(Scales()), batch(), CPU) is None


def _noisy() -> nn.Module:
    """A model with buffers that move and random numbers that are drawn."""
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH)
    )


@pytest.mark.parametrize("make", [_noisy, Looks])  # counted, and given up on the way
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


def _with_decay() -> Workload:
    """A loss that adds a penalty on the weights of the model it was made for."""
    model = nn.Linear(WIDTH, WIDTH)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        penalty = torch.stack([parameter.pow(2).sum() for parameter in model.parameters()]).sum()
        return nn.functional.mse_loss(outputs, targets) + 0.1 * penalty

    return workload_of(model, loss)


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
    """A loss that holds itself against its own running mean, and is no module."""

    def __init__(self) -> None:
        self.mean: Any = 1.0

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(outputs, targets)
        self.mean = 0.9 * self.mean + 0.1 * loss.detach()
        return torch.as_tensor(loss / self.mean)


def _with_own_mean() -> Workload:
    return workload_of(nn.Linear(WIDTH, WIDTH), Mean())


@pytest.mark.parametrize("make", [_with_decay, _with_own_mean])
def test_counting_leaves_what_a_loss_holds_as_it_was(make: Callable[[], Workload]) -> None:
    workload = make()
    count_flops_per_sample(workload, batch(), CPU)
    optimizer = torch.optim.SGD(workload.model.parameters(), lr=0.1)
    before = [parameter.detach().clone() for parameter in workload.model.parameters()]
    workload.loss_of(workload.model, batch()).backward()
    assert all(type(parameter.grad) is torch.Tensor for parameter in workload.model.parameters())
    optimizer.step()
    assert not any(
        torch.equal(old, new) for old, new in zip(before, workload.model.parameters(), strict=True)
    )


def test_counting_leaves_the_buffers_of_a_loss_as_they_were() -> None:
    loss = RunningScale()
    (before,) = loss.buffers()
    assert count_flops_per_sample(workload_of(nn.Linear(WIDTH, WIDTH), loss), batch(), CPU) is not None
    (after,) = loss.buffers()
    assert after is before
    assert torch.equal(before, torch.ones(()))


class Judges(nn.Module):
    """A loss with a product of its own, and a penalty on the weights of a model it may share."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.layer = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        penalty = torch.stack([parameter.pow(2).sum() for parameter in self.model.parameters()]).sum()
        return nn.functional.mse_loss(self.layer(outputs), targets) + penalty


def test_the_operations_of_a_loss_that_is_a_module_are_counted_too() -> None:
    product = 2 * WIDTH * WIDTH
    model = nn.Linear(WIDTH, WIDTH)
    assert count_flops_per_sample(workload_of(model), batch(), CPU) == 2 * product  # forward and weights
    assert count_flops_per_sample(workload_of(model, Judges(model)), batch(), CPU) == (2 + 3) * product


def test_a_copied_loss_shares_with_the_model_what_it_shared() -> None:
    model = nn.Linear(WIDTH, WIDTH)
    _, copied = fake_copy(workload_of(model, Judges(model)))
    assert isinstance(copied.loss, Judges)
    assert copied.loss.model is copied.model
    assert copied.model is not model
    assert isinstance(copied.model.weight, FakeTensor)


def test_a_loss_that_holds_tensors_and_is_no_module_cannot_be_counted() -> None:
    weights = torch.full((WIDTH,), 2.0)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return ((outputs - targets) * weights).pow(2).mean()

    assert count_flops_per_sample(workload_of(nn.Linear(WIDTH, WIDTH), loss), batch(), CPU) is None
    assert count_flops_per_sample(_with_decay(), batch(), CPU) is None


class Attending(nn.Module):
    """Attention by a kernel that the counter may not know."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        split = inputs.view(len(inputs), 1, 2, WIDTH // 2)
        mixed = nn.functional.scaled_dot_product_attention(split, split, split)
        return mixed.reshape(len(inputs), WIDTH)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.cells(inputs.unsqueeze(1))[0].squeeze(1))


@pytest.mark.parametrize("part", [Attending, Recurrent])
def test_a_count_that_misses_something_costly_is_none(part: type[nn.Module]) -> None:
    workload = workload_of(nn.Sequential(nn.Linear(WIDTH, WIDTH), part(), nn.Linear(WIDTH, WIDTH)))
    counted = count_flops_per_sample(workload, batch(), CPU)
    products = 3 * 2 * 2 * WIDTH * WIDTH - 2 * WIDTH * WIDTH  # what the two linear layers take
    assert counted is None or counted > 1.2 * products


def test_resizing_is_no_product() -> None:
    picture = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Unflatten(1, (1, 2, WIDTH // 2)), nn.UpsamplingBilinear2d(scale_factor=2)
    )
    workload = workload_of(nn.Sequential(picture, nn.Flatten(), nn.Linear(4 * WIDTH, WIDTH)))
    assert count_flops_per_sample(workload, batch(), CPU) is not None


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")  # the counter hooks into all modules
def test_counting_leaves_a_compiled_model_compilable() -> None:
    torch._dynamo.reset()
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(len(inputs))
        return graph.forward

    class Squared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.layer(inputs) ** 2

    workload = workload_of(torch.compile(Squared(), backend=backend))
    assert count_flops_per_sample(workload, batch(), CPU) is not None
    assert compiled == []
    workload.model(batch()[0])
    assert len(compiled) == 1
