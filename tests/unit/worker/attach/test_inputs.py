"""Samples from what the script's model receives."""

import torch
from torch import nn

from scalescope.worker.attach.hook_guard import HookGuard
from scalescope.worker.attach.inputs import ModelInputs


def _raise(error: Exception) -> None:
    raise error


GUARD = HookGuard(_raise)


def watched(*modules: nn.Module) -> ModelInputs:
    inputs = ModelInputs(GUARD)
    inputs.watch(parameter for module in modules for parameter in module.parameters())
    return inputs


def test_the_outermost_module_counts() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    inputs = watched(model)
    model(torch.randn(8, 4))
    inputs.settle()
    inputs.reset()
    model(torch.randn(8, 4))
    model(torch.randn(5, 4))
    assert inputs.counted() == (13, "samples", "Sequential")
    assert inputs.calls == 2


def test_what_runs_without_gradients_does_not_count() -> None:
    model = nn.Linear(4, 2)
    inputs = watched(model)
    model(torch.randn(8, 4))
    with torch.no_grad():
        model(torch.randn(100, 4))
    assert inputs.counted() == (8, "samples", "Linear")


def test_integers_of_two_dimensions_are_tokens() -> None:
    model = nn.Embedding(10, 4)
    inputs = watched(model)
    model(torch.zeros(3, 7, dtype=torch.long))
    assert inputs.counted() == (21, "tokens", "Embedding")


def test_texts_of_different_length_are_samples() -> None:
    model = nn.Embedding(10, 4)
    inputs = watched(model)
    model(torch.zeros(3, 7, dtype=torch.long))
    model(torch.zeros(3, 9, dtype=torch.long))
    assert inputs.counted() == (6, "samples", "Embedding")


class Keyword(nn.Module):
    """Takes named inputs, the first of which is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, *, scale: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(inputs) * scale
        return result


def test_named_inputs_and_numbers() -> None:
    model = Keyword()
    inputs = watched(model)
    model(scale=torch.tensor(2.0), inputs=torch.randn(6, 4))
    assert inputs.counted() == (6, "samples", "Keyword")


class Holder(nn.Module):
    """Is never called itself, like Lightning's modules."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def test_a_module_inside_one_that_is_never_called() -> None:
    holder = Holder()
    inputs = watched(holder)
    holder.model(torch.randn(9, 4))
    inputs.settle()
    inputs.reset()
    holder.model(torch.randn(9, 4))
    assert inputs.counted() == (9, "samples", "Sequential")


def test_of_several_modules_the_least_counts() -> None:
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    inputs = watched(generator, critic)
    critic(torch.randn(8, 4))
    critic(generator(torch.randn(8, 4)))
    assert inputs.counted() == (8, "samples", "Linear")
    assert len(inputs.modules) == 2


def test_removed_hooks_count_nothing() -> None:
    model = nn.Linear(4, 2)
    inputs = watched(model)
    inputs.remove()
    model(torch.randn(8, 4))
    assert inputs.counted() is None
