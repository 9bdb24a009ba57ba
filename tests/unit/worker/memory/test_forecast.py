"""The forecast on tensors without data: categories that can be counted by hand."""

from typing import Any

import pytest
import torch
from torch import nn

from scalescope.catalog.cards import card
from scalescope.catalog.setting import settings_of
from scalescope.experiment.trial import Trial
from scalescope.worker.memory.allocator import blocks_of, gathered_bytes
from scalescope.worker.memory.forecast import ForecastJob, forecast, keeps_gradients
from scalescope.worker.training.step import Data, Workload

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


class ReadsItsValues(nn.Module):
    """A model that decides by its own numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(inputs)
        return outputs if float(outputs.sum()) > 0 else -outputs


def counted(model: nn.Module, batch: int = 64, room: int | None = None, **changes: Any) -> dict[str, Any]:
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
        "device": "cpu",
        "purpose": "compare",
        **changes,
    }
    workload = Workload(model=model, data=Data(), loss=nn.functional.mse_loss)
    tensors = (torch.zeros(batch, WIDTH), torch.zeros(batch, WIDTH))
    job = ForecastJob(
        trial=Trial(settings=settings),
        workload=workload,
        batch=tensors,
        batches=2,
        device=torch.device("cpu"),
    )
    return dict(forecast(job, room))


def peak(counters: dict[str, Any], name: str) -> int:
    """The whole of a forecast."""
    return sum(size for key, size in counters.items() if key.startswith(f"forecast/{name}/"))


def kinds_of(counters: dict[str, Any]) -> set[str]:
    return {name.split("/")[1] for name in counters if name.count("/") > 1}


@pytest.mark.parametrize(("optimizer", "state"), [("sgd", 0), ("adamw", 2 * PARAMETERS)])
def test_what_lasts_is_counted_exactly_and_nothing_of_the_real_model_changes(
    optimizer: str, state: int
) -> None:
    model = nn.Sequential(Block())
    before = [parameter.clone() for parameter in model.parameters()]
    counters = counted(model, optimizer=optimizer)
    assert counters["forecast/as_asked/parameters"] == PARAMETERS
    assert counters["forecast/as_asked/gradients"] < PARAMETERS
    steps = 4 * 4 if optimizer == "adamw" else 0  # a counter for each parameter
    assert counters["forecast/as_asked/optimizer"] == state + steps
    assert counters["forecast/as_asked/inputs"] == 2 * 2 * 64 * WIDTH * 4
    assert kinds_of(counters) == {"as_asked"}
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.isfinite(model(torch.ones(1, WIDTH))).all()


def test_memory_grows_with_the_batch_and_bf16_and_checkpointing_hold_less() -> None:
    model = nn.Sequential(*(Block() for _ in range(3)))
    counters = counted(model, batch=4096, purpose="measure")
    assert kinds_of(counters) == {"as_asked", "at", "now", "kept", "bf16", "checkpointing"}
    assert counters["forecast/other_ways_batch"] == 4096  # where the room is unknown
    assert peak(counters, "bf16") < peak(counters, "now") == peak(counters, "as_asked")
    assert peak(counters, "checkpointing") < peak(counters, "now")
    first, second = (peak(counters, f"at/{4096 * times}") for times in (256, 512))
    assert second / first == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize(
    ("strategy", "changes", "stay"),
    [
        ("single", {}, False),
        ("ddp", {"gradient_as_bucket_view": True}, True),
        ("ddp", {"gradient_as_bucket_view": False}, False),
        ("zero1", {"gradient_as_bucket_view": True}, True),
        ("fsdp", {}, False),
        ("scratch_ddp", {}, True),
    ],
)
def test_gradients_in_buckets_stay(strategy: str, changes: dict[str, bool], stay: bool) -> None:
    defaults = {
        setting.name: setting.default_for("cpu") for setting in settings_of(card("strategies", strategy))
    }
    settings = {"strategy": strategy, "device": "cpu", **defaults, **changes}
    assert keeps_gradients(Trial(settings=settings)) is stay
    if changes.get("gradient_as_bucket_view") and strategy == "ddp":
        sizes = counted(nn.Sequential(Block()), batch=4096, **settings)
        assert sizes["forecast/as_asked/gradients"] == PARAMETERS


def test_a_model_that_looks_at_its_numbers_has_a_reason_instead() -> None:
    counters = counted(ReadsItsValues())
    assert "forecast/as_asked/parameters" not in counters
    assert "DataDependent" in counters["forecast/as_asked/problem"]


def test_lone_layers_are_no_blocks() -> None:
    assert blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == []
    model = nn.Sequential(nn.Embedding(9, WIDTH), Block(), Block(), nn.Linear(WIDTH, 9))
    assert blocks_of(model) == [model[1], model[2]]
    heavy = nn.Sequential(nn.Linear(8 * WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    model = nn.Sequential(heavy, Block(), Block())
    assert blocks_of(model) == [model[1], model[2]]
    assert blocks_of(nn.Sequential(Block())) == []


def test_fsdp_has_two_blocks_whole_and_what_is_in_none() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(4))
            self.head = nn.Linear(WIDTH, 1, bias=False)

    assert gathered_bytes(Model()) == 2 * PARAMETERS + 4 * WIDTH


def test_accumulating_steps_have_a_forecast_and_keep_gradients() -> None:
    counters = counted(nn.Sequential(Block(), Block()), batch=4096, accumulation_steps=2, purpose="measure")
    assert not [name for name in counters if name.endswith("problem")]
    assert counters["forecast/as_asked/gradients"] == 2 * PARAMETERS


def test_a_brief_forecast_has_large_batches_and_no_other_ways() -> None:
    assert kinds_of(counted(nn.Sequential(Block()), batch=2, purpose="brief")) == {"as_asked", "at"}


def test_other_ways_are_compared_near_the_largest_batch_that_fits() -> None:
    room = 4 << 20
    counters = counted(nn.Sequential(Block(), Block()), batch=2, room=room, purpose="measure")
    batch = counters["forecast/other_ways_batch"]
    assert 64 < batch < 4096
    assert peak(counters, "now") == pytest.approx(room, rel=0.02)
    assert counters["forecast/kept/gradients"] == 2 * PARAMETERS > counters["forecast/now/gradients"]
