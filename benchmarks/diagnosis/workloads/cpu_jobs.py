"""Jobs for the CPU with a cause injected into them, as workloads of a user would have it.

A job is a small network whose forward pass sleeps for `busy_ms`, so that several ranks share two cores
without slowing each other down. What is injected runs inside the forward pass, or in the data set.
"""

import functools
import gc
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

_FEATURES = 64
_CLASSES = 8
_SAMPLES = 16_384  # so that no epoch ends inside a window
_kept: list[Any] = []  # what a job keeps in memory: outside the model, which may be copied

Job = tuple[Any, ...]
Injected = Callable[[int], None]  # called with the number of the forward pass


def slow_samples(*, sample_ms: float, busy_ms: float = 8.0) -> Job:
    """A data set whose samples take long to read."""
    return _model(busy_ms), SlowSamples(sample_ms), nn.functional.mse_loss


def slow_collate(*, collate_ms: float, busy_ms: float = 8.0) -> Job:
    """Samples that are there at once, and a slow function that makes batches of them."""

    def collate(samples: list[Any]) -> Any:
        time.sleep(collate_ms / 1e3)
        return torch.utils.data.default_collate(samples)

    loader = DataLoader(SlowSamples(0.0), batch_size=2, collate_fn=collate)
    return _model(busy_ms), loader, nn.functional.mse_loss


def collected(*, objects: int, every: int = 1, busy_ms: float = 10.0) -> Job:
    """A large heap, and a full collection every few steps."""
    _kept.extend([number] for number in range(objects))

    def collect(call: int) -> None:
        if call % every == 0:
            gc.collect()

    return _ready(_model(busy_ms, collect))


def kept_records(*, records: int, busy_ms: float = 5.0) -> Job:
    """A history that grows with every step, so that Python traverses it again and again."""

    def remember(call: int) -> None:
        _kept.extend({"step": [call], "layer": [number]} for number in range(records))

    return _ready(_model(busy_ms, remember))


def cyclic_garbage(*, nodes: int, busy_ms: float = 5.0) -> Job:
    """Objects that refer to each other, which only the collector can free."""

    def litter(call: int) -> None:
        for _ in range(nodes):
            node: list[Any] = []
            node.append([node])

    return _ready(_model(busy_ms, litter))


def pauses(
    rank: int, *, every: int, pause_ms: float, only_rank: int | None = None, busy_ms: float = 12.0
) -> Job:
    """A pause at every k-th step, of all ranks or one: a checkpoint, logging, a validation batch."""

    def pause(call: int) -> None:
        if call and call % every == 0 and only_rank in (None, rank):
            time.sleep(pause_ms / 1e3)

    return _ready(_model(busy_ms, pause))


def checkpoints(
    rank: int, *, every: int, megabytes: float, only_rank: int | None = None, busy_ms: float = 12.0
) -> Job:
    """A real checkpoint at every k-th step, of all ranks or one."""
    state = {"weights": torch.zeros(round(megabytes * 2**20 / 4))}

    def save(call: int) -> None:
        if call and call % every == 0 and only_rank in (None, rank):
            with tempfile.TemporaryFile() as file:
                torch.save(state, file)

    return _ready(_model(busy_ms, save))


def many_tensors(*, layers: int, busy_ms: float, loop: bool = False) -> Job:
    """Many small layers, whose parameters the optimizer updates tensor by tensor."""
    body = nn.Sequential(
        nn.Linear(_FEATURES, 8), *(nn.Linear(8, 8) for _ in range(layers)), nn.Linear(8, _CLASSES)
    )
    job = _ready(Model(body, busy_ms, _nothing))
    return (*job, functools.partial(torch.optim.AdamW, foreach=False)) if loop else job


def uneven(rank: int, world_size: int, *, excess: float, tokens: int = 64, token_us: float = 15.0) -> Job:
    """The last of several ranks gets longer samples than the others; time grows with their length."""
    is_long = 0 < rank == world_size - 1
    length = round(tokens * (1.0 + excess)) if is_long else tokens
    return _by_length(lambda: length, token_us)


def random_lengths(rank: int, *, least: int, most: int, token_us: float = 15.0) -> Job:
    """Batches are padded to their longest sample, and each rank's differ."""
    generator = torch.Generator().manual_seed(rank)
    return _by_length(lambda: int(torch.randint(least, most + 1, (), generator=generator)), token_us)


def computed_lengths(rank: int, world_size: int, *, excess: float, tokens: int = 96) -> Job:
    """As `uneven`, and the time is spent computing."""
    is_long = 0 < rank == world_size - 1
    length = round(tokens * (1.0 + excess)) if is_long else tokens
    body = nn.Sequential(nn.Linear(_FEATURES, 512), nn.ReLU(), nn.Linear(512, _CLASSES))
    return Model(body, 0.0, _nothing), _loader(ReadyBatches(lambda: length)), _mean_over_tokens


def healthy(*, busy_ms: float) -> Job:
    """Nothing is injected."""
    return _ready(_model(busy_ms))


class Model(nn.Module):
    """A network that sleeps in its forward pass, after what is injected."""

    def __init__(self, body: nn.Module, busy_ms: float, injected: Injected, token_us: float = 0.0) -> None:
        super().__init__()
        self.body = body
        self._busy_s = busy_ms / 1e3
        self._token_s = token_us / 1e6
        self._calls = 0
        self._injected = injected

    def forward(self, inputs: Tensor) -> Tensor:
        self._injected(self._calls)
        self._calls += 1
        time.sleep(self._busy_s + self._token_s * inputs.shape[0] * inputs.shape[1])
        outputs: Tensor = self.body(inputs)
        return outputs


class SlowSamples(Dataset[Any]):
    """Samples that take so long to read."""

    def __init__(self, sample_ms: float) -> None:
        self._sample_s = sample_ms / 1e3

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if self._sample_s:
            time.sleep(self._sample_s)
        return torch.ones(_FEATURES), torch.zeros(_CLASSES)


class ReadyBatches(Dataset[Any]):
    """Whole batches at once: a loader has nothing to do. With a length, samples are sequences."""

    def __init__(self, length: Callable[[], int] | None = None) -> None:
        self._length = length

    def __len__(self) -> int:
        return _SAMPLES

    def __getitems__(self, numbers: list[int]) -> tuple[Tensor, Tensor]:
        tokens = () if self._length is None else (self._length(),)
        return torch.ones(len(numbers), *tokens, _FEATURES), torch.zeros(len(numbers), *tokens, _CLASSES)


def _model(busy_ms: float, injected: Injected | None = None) -> Model:
    body = nn.Sequential(nn.Linear(_FEATURES, 128), nn.ReLU(), nn.Linear(128, _CLASSES))
    return Model(body, busy_ms, injected or _nothing)


def _nothing(call: int) -> None:
    """Healthy."""


def _ready(model: nn.Module) -> Job:
    return model, _loader(ReadyBatches()), nn.functional.mse_loss


def _by_length(length: Callable[[], int], token_us: float) -> Job:
    body = nn.Linear(_FEATURES, _CLASSES)
    return Model(body, 2.0, _nothing, token_us), _loader(ReadyBatches(length)), _mean_over_tokens


def _loader(batches: ReadyBatches) -> "DataLoader[Any]":
    return DataLoader(batches, batch_size=2, collate_fn=_unchanged)


def _unchanged(batch: Any) -> Any:
    return batch


def _mean_over_tokens(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()
