"""What is seen of a script that does already what levers would do."""

from typing import Any

import pytest
import torch
from torch import nn

from scalescope.worker.hooks.hook_guard import HookGuard
from scalescope.worker.hooks.inputs import ModelInputs
from scalescope.worker.hooks.levers import already_there

CPU = torch.device("cpu")


def facts(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    return already_there([model], [optimizer], model.parameters(), CPU)


def test_a_plain_script_does_nothing_yet() -> None:
    model = nn.Linear(2, 2)
    assert facts(model, torch.optim.AdamW(model.parameters())) == {
        "parameter_format": None,
        "tf32": None,
        "compiled": 0,
        "fused": 0,
        "fusible": 1,
    }


def test_formats_compilation_and_fused_optimizers_are_seen() -> None:
    model = nn.Sequential(nn.Linear(2, 2)).to(torch.bfloat16)
    model[0].compile(backend="eager")
    seen = facts(model, torch.optim.AdamW(model.parameters(), fused=True))
    assert (seen["parameter_format"], seen["compiled"], seen["fused"]) == ("bf16", 1, 1)
    seen = facts(nn.Linear(2, 2), torch.optim.Adadelta(model.parameters()))
    assert (seen["fused"], seen["fusible"]) == (0, 0)


def test_optimizers_of_other_libraries() -> None:
    inner = torch.optim.AdamW(nn.Linear(2, 2).parameters())
    wrapper = type("Sharded", (), {"optim": inner})()
    other = type("FusedLamb", (), {"__module__": "apex.optimizers"})()
    assert facts(nn.Linear(2, 2), wrapper)["fusible"] == 1
    seen = facts(nn.Linear(2, 2), other)
    assert (seen["fused"], seen["fusible"]) == (1, 0)


class Inside(nn.Module):
    """Enters autocast in its own forward, as prepared models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs: torch.Tensor = self.layer(inputs)
        return outputs


@pytest.mark.parametrize(("is_inside", "around"), [(True, False), (False, True), (False, False)])
def test_autocast_is_seen_around_a_model_and_inside_of_it(is_inside: bool, around: bool) -> None:
    model = Inside() if is_inside else nn.Sequential(nn.Linear(2, 2))
    inputs = ModelInputs(HookGuard(lambda error: None))
    inputs.watch(model.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=around):
        model(torch.ones(1, 2))
    inputs.remove()
    assert inputs.autocast == ("bf16" if is_inside or around else None)
