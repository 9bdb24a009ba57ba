"""Levers of a script: formats, compilation and fused optimizers, set from outside."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from scalescope.errors import BadInput
from scalescope.worker.hooks.levers import ScriptLevers


@pytest.fixture(autouse=True)
def usual_formats() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True


def test_without_settings_nothing_changes() -> None:
    model = nn.Linear(2, 2)
    levers = ScriptLevers({"precision": None, "compile": "none", "fused_optimizer": False})
    levers.install()
    torch.set_float32_matmul_precision("high")  # the script's own
    levers.apply([model])
    levers.check()
    assert torch.get_float32_matmul_precision() == "high"
    assert model(torch.ones(1, 2)).dtype == torch.float32


@pytest.mark.parametrize(("precision", "is_on"), [("tf32", True), ("fp32", False)])
def test_tf32_stays_as_asked_whatever_the_script_sets(precision: str, is_on: bool) -> None:
    levers = ScriptLevers({"precision": precision})
    levers.install()
    torch.set_float32_matmul_precision("highest" if is_on else "high")
    torch.backends.cudnn.allow_tf32 = False
    levers.apply([])
    assert torch.get_float32_matmul_precision() == ("high" if is_on else "highest")
    assert torch.backends.cudnn.allow_tf32  # PyTorch's default for convolutions, in fp32 too


def test_the_model_runs_under_autocast_and_a_loss_outside_of_it_has_fp32() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    inside: list[torch.dtype] = []
    model[0].register_forward_hook(lambda module, inputs, output: inside.append(output.dtype))
    ScriptLevers({"precision": "bf16"}).apply([model])
    assert model(torch.ones(1, 2)).dtype == torch.float32
    assert inside == [torch.bfloat16]
    assert not torch.is_autocast_enabled("cpu")


def test_the_model_inside_a_wrapper_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[nn.Module, Any]] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, mode: compiled.append((self, mode)))
    wrapper, plain = nn.Module(), nn.Linear(2, 2)
    wrapper.module = nn.Linear(2, 2)
    ScriptLevers({"compile": "max-autotune"}).apply([wrapper, plain])
    ScriptLevers({"compile": "default"}).apply([plain])
    assert compiled == [(wrapper.module, "max-autotune"), (plain, "max-autotune"), (plain, None)]


def test_optimizers_that_can_are_fused() -> None:
    levers = ScriptLevers({"fused_optimizer": True})
    levers.install()
    try:
        with pytest.raises(BadInput, match="no optimizer that has a fused version"):
            levers.check()
        optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters(), lr=0.1)
        levers.check()
    finally:
        levers.remove()
    assert optimizer.defaults["fused"] is True
    assert not torch.optim.AdamW(nn.Linear(2, 2).parameters()).defaults["fused"]


def _formats(model: nn.Module) -> list[torch.dtype]:
    inside: list[torch.dtype] = []
    handle = model[0].register_forward_hook(lambda module, inputs, output: inside.append(output.dtype))
    model(torch.ones(1, 2))
    handle.remove()
    return inside


def test_levers_are_switched_for_a_while_and_the_script_gets_its_own_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    own = model.forward = lambda batch, forward=model.forward: forward(batch)  # a script may set one too
    levers = ScriptLevers({"precision": None})
    levers.apply([model])
    for _ in range(2):
        with levers.switched({"precision": "bf16", "compile": "none"}):
            assert _formats(model) == [torch.bfloat16]
        assert _formats(model) == [torch.float32]
        assert model.forward is own
    with levers.switched({"precision": "tf32", "compile": "none"}):
        assert torch.get_float32_matmul_precision() == "high"
        assert _formats(model) == [torch.float32]
    assert torch.get_float32_matmul_precision() == "highest"


def test_what_is_switched_on_is_switched_off_where_the_launch_has_it() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    levers = ScriptLevers({"precision": "bf16"})
    levers.apply([model])
    with levers.switched({"precision": None, "compile": "none"}):
        assert _formats(model) == [torch.float32]
    assert _formats(model) == [torch.bfloat16]


def test_what_is_compiled_is_kept_and_runs_inside_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """A format inside of compiled code leaves parts in another where the script chose one around it."""
    compiled: list[bool] = []

    def compile_(module: nn.Module, mode: str | None) -> None:
        def call(batch: torch.Tensor) -> torch.Tensor:
            compiled.append(torch.is_autocast_enabled("cpu"))
            return module.forward(batch)

        module._compiled_call_impl = call

    monkeypatch.setattr(nn.Module, "compile", compile_)
    model = nn.Sequential(nn.Linear(2, 2))
    levers = ScriptLevers({"precision": "bf16"})
    levers.apply([model])
    for _ in range(2):
        with levers.switched({"precision": "bf16", "compile": "default"}):
            first = model._compiled_call_impl
            assert model(torch.ones(1, 2)).dtype == torch.float32
        assert model._compiled_call_impl is None
    with levers.switched({"precision": "bf16", "compile": "default"}):
        assert model._compiled_call_impl is first
    assert compiled == [True, True]


def test_outputs_beside_a_loss_keep_their_format() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            scores = self.layer(batch)
            return scores, scores.square().mean()

    model = WithLoss()
    ScriptLevers({"precision": "bf16"}).apply([model])
    scores, _ = model(torch.ones(1, 2))
    assert scores.dtype == torch.bfloat16
