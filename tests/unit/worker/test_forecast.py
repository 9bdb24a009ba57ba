"""The forecast on tensors without data: categories that can be counted by hand."""

import gc
from typing import Any

import pytest
import torch
from torch import nn

from scalescope.experiment.trial import Trial
from scalescope.worker.forecast import blocks_of, forecast
from scalescope.worker.step import Data, Workload

WIDTH = 32
PARAMETERS = 4 * (WIDTH * WIDTH + WIDTH) * 2


class Block(nn.Module):
    """Two layers: something to checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.second(torch.relu(self.first(inputs)))
        return hidden


class Looks(nn.Module):
    """A model that decides by its own numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(inputs)
        return outputs if float(outputs.sum()) > 0 else -outputs


def counted(model: nn.Module, batch: int = 64, **changes: Any) -> dict[str, Any]:
    settings = {
        "benchmark": "memory",
        "workload": "mlp",
        "strategy": "single",
        "optimizer": "sgd",
        "lr": 0.1,
        "precision": "fp32",
        "batch_size": batch,
        "global_batch_size": None,
        "data": "synthetic",
        "world_size": 1,
        **changes,
    }
    workload = Workload(model=model, data=Data(), loss=nn.functional.mse_loss)
    tensors = (torch.zeros(batch, WIDTH), torch.zeros(batch, WIDTH))
    return dict(forecast(Trial(settings=settings), workload, tensors, 2, torch.device("cpu")))


@pytest.mark.parametrize(("optimizer", "state"), [("sgd", 0), ("adamw", 2 * PARAMETERS)])
def test_what_lasts_is_counted_exactly(optimizer: str, state: int) -> None:
    found = counted(nn.Sequential(Block()), optimizer=optimizer)
    assert found["forecast/as_asked/parameters"] == PARAMETERS
    steps = 4 * 4 if optimizer == "adamw" else 0  # a counter for each parameter
    assert found["forecast/as_asked/optimizer"] == state + steps
    assert found["forecast/as_asked/inputs"] == 2 * 2 * 64 * WIDTH * 4
    parts = [size for name, size in found.items() if name.startswith("forecast/as_asked/")]
    assert sum(parts) == 2 * found["forecast/as_asked/peak"]


def test_nothing_of_the_real_model_changes() -> None:
    model = nn.Sequential(Block())
    before = [one.clone() for one in model.parameters()]
    counted(model)
    gc.collect()
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(one.grad is None for one in model.parameters())
    assert torch.isfinite(model(torch.ones(1, WIDTH))).all()


def test_memory_grows_with_the_batch_and_bf16_and_checkpointing_hold_less() -> None:
    model = nn.Sequential(*(Block() for _ in range(6)))
    found = counted(model, batch=4096)
    peak = found["forecast/as_asked/peak"]
    assert found["forecast/bf16/peak"] < peak
    assert found["forecast/checkpointing/peak"] < peak
    first, second = (found[f"forecast/at/{4096 * times}/peak"] for times in (256, 512))
    assert second / first == pytest.approx(2, rel=0.01)


def test_gradients_in_buckets_stay() -> None:
    dropped = counted(nn.Sequential(Block()), batch=4096)
    kept = counted(nn.Sequential(Block()), batch=4096, gradient_as_bucket_view=True)
    assert dropped["forecast/as_asked/gradients"] < PARAMETERS
    assert kept["forecast/as_asked/gradients"] == PARAMETERS


def test_a_model_that_looks_at_its_numbers_has_a_reason_instead() -> None:
    found = counted(Looks())
    assert "forecast/as_asked/peak" not in found
    assert "DataDependent" in found["forecast/as_asked/problem"]


def test_lone_layers_are_no_blocks() -> None:
    assert blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == []
    model = nn.Sequential(nn.Embedding(9, WIDTH), Block(), Block(), nn.Linear(WIDTH, 9))
    assert blocks_of(model) == [model[1], model[2]]
