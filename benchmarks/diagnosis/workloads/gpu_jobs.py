"""Jobs for one GPU with a cause injected into them, and the same jobs without it, as a user would have them.

A transformer of GPT-2's smallest shape (124 million parameters), a ResNet-50, and two small jobs. On the CPU
every job is tiny, so that all of this can be tried without a GPU. Where input is not the cause, batches wait
on the device.
"""

import functools
import gc
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from scalescope.catalog.workloads.cnn import Cnn
from scalescope.catalog.workloads.transformer import Transformer
from scalescope.worker.training.step import BuildContext
from scalescope.worker.workloads import cnn, transformer

_SAMPLES = 1 << 16  # so that no epoch ends inside a window
_CHECKPOINT_EVERY = 10
_log = logging.getLogger(__name__)
_heap: list[Any] = []
_checkpoint: dict[str, Tensor] = {}

Job = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of all jobs."""

    layers: int
    width: int
    heads: int
    tokens: int
    vocabulary: int
    image: int
    depth: int
    channels: int
    mlp_layers: int
    mlp_width: int
    objects: int
    sample_ms: float  # of a slow data set
    literal_sample_ms: float
    collate_ms: float


FULL = Sizes(
    layers=12, width=768, heads=12, tokens=1024, vocabulary=50_257, image=224, depth=50, channels=64,
    mlp_layers=48, mlp_width=512, objects=1_000_000, sample_ms=4.0, literal_sample_ms=271.0 / 32,
    collate_ms=40.0,
)  # fmt: skip
TINY = Sizes(
    layers=2, width=16, heads=2, tokens=16, vocabulary=64, image=32, depth=18, channels=4,
    mlp_layers=4, mlp_width=16, objects=10_000, sample_ms=1.0, literal_sample_ms=4.0, collate_ms=4.0,
)  # fmt: skip


def sizes_for(device: torch.device) -> Sizes:
    return FULL if device.type == "cuda" else TINY


# --- the transformer ---


def transformer_healthy(device: torch.device, batch_size: int) -> Job:
    return _language_model(device), _tokens(device, batch_size), next_token_loss


def transformer_item_in_layers(device: torch.device, batch_size: int) -> Job:
    """Each block checks its output, for which the host waits for the GPU twice."""
    model = _language_model(device)
    return _with_blocks(model, Checked), _tokens(device, batch_size), next_token_loss


def transformer_item_in_loss(device: torch.device, batch_size: int) -> Job:
    """The loss and the accuracy are logged at every step."""
    history: list[tuple[float, float]] = []

    def logged_loss(logits: Tensor, targets: Tensor) -> Tensor:
        loss = next_token_loss(logits, targets)
        accuracy = (logits.argmax(-1) == targets).float().mean()
        history.append((loss.item(), accuracy.item()))
        return loss

    return _language_model(device), _tokens(device, batch_size), logged_loss


def transformer_logged_norms(device: torch.device, batch_size: int) -> Job:
    """The norm of every gradient is logged at every step."""
    optimizer = functools.partial(LoggingAdamW, lr=1e-4, fused=True)
    return _language_model(device), _tokens(device, batch_size), next_token_loss, optimizer


def transformer_boolean_mask(device: torch.device, batch_size: int) -> Job:
    """Blocks select their tokens by a mask, whose count the host must know."""
    model = _language_model(device)
    return _with_blocks(model, Masked), _tokens(device, batch_size), next_token_loss


def transformer_loader(device: torch.device) -> Job:
    """Tokens from a data set in memory."""
    return _language_model(device), Tokens(sizes_for(device), 0.0), next_token_loss


def transformer_slow_loader(device: torch.device) -> Job:
    """Each sample takes milliseconds to read."""
    sizes = sizes_for(device)
    return _language_model(device), Tokens(sizes, sizes.sample_ms), next_token_loss


def transformer_slow_collate(device: torch.device) -> Job:
    """Making a batch of the samples takes milliseconds."""
    sizes = sizes_for(device)

    def collate(samples: list[Any]) -> Any:
        time.sleep(sizes.collate_ms / 1e3)
        return torch.utils.data.default_collate(samples)

    loader = DataLoader(Tokens(sizes, 0.0), batch_size=2, collate_fn=collate)
    return _language_model(device), loader, next_token_loss


def transformer_unfused_optimizer(device: torch.device, batch_size: int) -> Job:
    """AdamW updates tensor after tensor, each with a dozen kernels."""
    optimizer = functools.partial(torch.optim.AdamW, lr=1e-4, foreach=False, fused=False)
    return _language_model(device), _tokens(device, batch_size), next_token_loss, optimizer


def transformer_fused_optimizer(device: torch.device, batch_size: int) -> Job:
    optimizer = functools.partial(torch.optim.AdamW, lr=1e-4, fused=True)
    return _language_model(device), _tokens(device, batch_size), next_token_loss, optimizer


def transformer_small_kernels(device: torch.device, batch_size: int) -> Job:
    """Norm, activation and attention are written out, an operation at a time."""
    model = _language_model(device, Handwritten)
    return model, _tokens(device, batch_size), next_token_loss


def transformer_compiled(device: torch.device, batch_size: int) -> Job:
    """The written-out blocks, compiled."""
    model = _language_model(device, Handwritten)
    for block in model[1:-1]:
        block.compile()
    return model, _tokens(device, batch_size), next_token_loss


def transformer_graph_breaks(device: torch.device, batch_size: int) -> Job:
    """The same, with a line of logging that torch.compile cannot include in its graph."""
    model = _language_model(device, Logging)
    for block in model[1:-1]:
        block.compile()
    return model, _tokens(device, batch_size), next_token_loss


def transformer_recompiled(device: torch.device, batch_size: int) -> Job:
    """Compiled for each length of a batch anew."""
    return _compiled_for_lengths(device, batch_size, padded=False)


def transformer_padded(device: torch.device, batch_size: int) -> Job:
    """Compiled once: batches are padded to one length."""
    return _compiled_for_lengths(device, batch_size, padded=True)


def transformer_empty_cache(device: torch.device, batch_size: int) -> Job:
    """Memory goes back to the driver at every step, and is allocated again."""
    model = Before(_language_model(device), lambda call, model: torch.cuda.empty_cache())
    return model, _tokens(device, batch_size), next_token_loss


def transformer_garbage(device: torch.device, batch_size: int) -> Job:
    """A large heap, collected at every step."""
    _heap.extend([number] for number in range(sizes_for(device).objects))
    model = Before(_language_model(device), lambda call, model: gc.collect())
    return model, _tokens(device, batch_size), next_token_loss


def transformer_checkpoints(device: torch.device, batch_size: int) -> Job:
    """Every tenth step copies all parameters to the host."""
    return Before(_language_model(device), save), _tokens(device, batch_size), next_token_loss


# --- ResNet-50 ---


def resnet_healthy(device: torch.device, batch_size: int) -> Job:
    return _resnet(device), _images(device, batch_size, device), functional.cross_entropy


def resnet_item_in_blocks(device: torch.device, batch_size: int) -> Job:
    """Each residual block checks its output, for which the host waits for the GPU."""
    model = _with_blocks(_resnet(device), Checked)
    return model, _images(device, batch_size, device), functional.cross_entropy


def resnet_pageable(device: torch.device, batch_size: int) -> Job:
    """Images in ordinary memory."""
    return _resnet(device), _images(device, batch_size, torch.device("cpu")), functional.cross_entropy


def resnet_pinned(device: torch.device, batch_size: int) -> Job:
    """Images in page-locked memory, from which copies need not be waited for."""
    batches = _images(device, batch_size, torch.device("cpu"), pinned=device.type == "cuda")
    return _resnet(device), batches, functional.cross_entropy


def resnet_checkpoints(device: torch.device, batch_size: int) -> Job:
    """Every tenth step copies all parameters to the host, and writes them to memory as a file."""
    return Before(_resnet(device), save), _images(device, batch_size, device), functional.cross_entropy


# --- two small jobs ---


def mlp_healthy(device: torch.device, batch_size: int) -> Job:
    return _mlp(device), _vectors(device, batch_size), functional.mse_loss


def mlp_item_in_layers(device: torch.device, batch_size: int) -> Job:
    """A hidden `.item()` in each of 48 layers."""
    layers = [Checked(layer) for layer in _mlp(device)]
    return nn.Sequential(*layers), _vectors(device, batch_size), functional.mse_loss


def loader_healthy(device: torch.device) -> Job:
    return _short_mlp(device), Vectors(sizes_for(device), 0.0), functional.mse_loss


def loader_slow(device: torch.device) -> Job:
    """271 of 273 ms are spent reading samples."""
    sizes = sizes_for(device)
    return _short_mlp(device), Vectors(sizes, sizes.literal_sample_ms), functional.mse_loss


# --- what they are made of ---


class Checked(nn.Module):
    """Looks at what its layer returns, for which the host waits for the GPU."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, stream: Tensor) -> Tensor:
        outputs: Tensor = self.layer(stream)
        if outputs.detach().abs().max().item() > 1e30:
            raise ValueError("a layer's output is too large")
        return outputs


class Masked(nn.Module):
    """Selects the tokens that are not empty before its layer, and puts them back."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, stream: Tensor) -> Tensor:
        real = stream.detach().abs().sum(dim=-1) > 0
        packed = stream[real]
        restored = torch.zeros_like(stream)
        restored[real] = packed
        outputs: Tensor = self.layer(restored)
        return outputs


class Before(nn.Module):
    """Calls a function with the number of the step and the model before each forward pass."""

    def __init__(self, model: nn.Module, injected: Callable[[int, nn.Module], object]) -> None:
        super().__init__()
        self.model = model
        self._injected = injected
        self._calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self._injected(self._calls, self.model)
        self._calls += 1
        outputs: Tensor = self.model(inputs)
        return outputs


class Handwritten(transformer.EncoderBlock):
    """An encoder block without PyTorch's functions for norm, activation and attention."""

    def forward(self, stream: Tensor) -> Tensor:
        stream = stream + self._mixed(_normalized(stream, self.attention_norm))
        widened = self.feedforward[0](_normalized(stream, self.feedforward_norm))
        narrowed: Tensor = self.feedforward[2](self._activated(widened))
        return stream + narrowed

    def _activated(self, wide: Tensor) -> Tensor:
        return 0.5 * wide * (1.0 + torch.tanh(0.7978845608 * (wide + 0.044715 * wide * wide * wide)))

    def _mixed(self, vectors: Tensor) -> Tensor:
        batch, length, width = vectors.shape
        split = self.queries_keys_values(vectors).view(batch, length, 3, self._heads, width // self._heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        scores = queries @ keys.transpose(-2, -1) * (width // self._heads) ** -0.5
        later = torch.ones(length, length, dtype=torch.bool, device=vectors.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
        weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
        weights = weights / weights.sum(dim=-1, keepdim=True)
        mixed = (weights.to(values.dtype) @ values).transpose(1, 2).reshape(batch, length, width)
        attended: Tensor = self.attention_out(mixed)
        return attended


class Logging(Handwritten):
    """Logs between the operations of its activation, which torch.compile would have fused."""

    def _activated(self, wide: Tensor) -> Tensor:
        cubed = wide + 0.044715 * wide * wide * wide
        _log.debug("activation of %s", wide.shape)
        bounded = torch.tanh(0.7978845608 * cubed)
        _log.debug("bounded")
        return 0.5 * wide * (1.0 + bounded)


class LoggingAdamW(torch.optim.AdamW):
    """Adds up the norms of the gradients on the host, a parameter at a time."""

    norm = 0.0

    def step(self, closure: Any = None) -> Any:
        parameters = (parameter for group in self.param_groups for parameter in group["params"])
        norms = [parameter.grad.norm().item() for parameter in parameters if parameter.grad is not None]
        self.norm = sum(norm * norm for norm in norms) ** 0.5
        return super().step(closure)


class ReadyBatches(Dataset[Any]):
    """Whole batches in turn: a loader has nothing to do."""

    def __init__(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._batches = batches
        self._next = 0

    def __len__(self) -> int:
        return _SAMPLES

    def __getitems__(self, numbers: list[int]) -> tuple[Tensor, Tensor]:
        batch = self._batches[self._next % len(self._batches)]
        self._next += 1
        return batch


class Tokens(Dataset[Any]):
    """Random tokens and their successors; each sample may take long to read."""

    def __init__(self, sizes: Sizes, sample_ms: float) -> None:
        self._sizes = sizes
        self._sample_s = sample_ms / 1e3

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if self._sample_s:
            time.sleep(self._sample_s)
        tokens = torch.randint(self._sizes.vocabulary, (self._sizes.tokens + 1,))
        return tokens[:-1], tokens[1:]


class Vectors(Dataset[Any]):
    """Vectors; each may take long to read."""

    def __init__(self, sizes: Sizes, sample_ms: float) -> None:
        self._width = sizes.mlp_width
        self._sample_s = sample_ms / 1e3

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if self._sample_s:
            time.sleep(self._sample_s)
        return torch.ones(self._width), torch.zeros(self._width)


def save(call: int, model: nn.Module) -> None:
    """A checkpoint in the memory of the host."""
    if call and call % _CHECKPOINT_EVERY == 0:
        _checkpoint.update({name: value.cpu() for name, value in model.state_dict().items()})


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _language_model(
    device: torch.device, block: type[transformer.EncoderBlock] | None = None
) -> nn.Sequential:
    """GPT-2's smallest shape: the head has the weights of the embedding."""
    options = language_options(sizes_for(device))
    model = transformer.build(options, device, _context()).model
    assert isinstance(model, nn.Sequential)
    if block is not None:
        for number in range(1, len(model) - 1):
            model[number] = block(options, device, causal=True, padded=False)
    model[-1].output.weight = model[0].tokens.weight
    return model


def language_options(sizes: Sizes) -> Transformer:
    return Transformer(
        d_model=sizes.width,
        n_heads=sizes.heads,
        num_layers=sizes.layers,
        dim_feedforward=4 * sizes.width,
        max_seq_len=sizes.tokens,
        vocab_size=sizes.vocabulary,
        dropout=0.0,
        task="next_token",
        num_classes=None,
    )


def _compiled_for_lengths(device: torch.device, batch_size: int, *, padded: bool) -> Job:
    import torch._dynamo

    for name in ("recompile_limit", "cache_size_limit", "accumulated_recompile_limit"):
        if hasattr(torch._dynamo.config, name):
            setattr(torch._dynamo.config, name, 1024)
    model, sizes = _language_model(device), sizes_for(device)
    for block in model[1:-1]:
        block.compile(dynamic=False, backend="aot_eager")  # its short compilations fit into a window
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randperm(sizes.tokens // 2, generator=generator) + sizes.tokens // 2 + 1
    batches = [
        _token_batch(device, batch_size, sizes.tokens if padded else int(length)) for length in lengths
    ]
    return model, _loader(ReadyBatches(batches)), next_token_loss


def _with_blocks(model: nn.Sequential, wrapper: Callable[[nn.Module], nn.Module]) -> nn.Sequential:
    """Wraps all parts but the first and the last."""
    for number in range(1, len(model) - 1):
        model[number] = wrapper(model[number])
    return model


def _resnet(device: torch.device) -> nn.Sequential:
    sizes = sizes_for(device)
    options = Cnn(image_size=sizes.image, channels=sizes.channels, depth=sizes.depth, num_classes=None)
    model = cnn.build(options, device, _context()).model
    assert isinstance(model, nn.Sequential)
    return model


def _mlp(device: torch.device) -> nn.Sequential:
    sizes = sizes_for(device)
    layers = (nn.Linear(sizes.mlp_width, sizes.mlp_width, device=device) for _ in range(sizes.mlp_layers))
    return nn.Sequential(*(nn.Sequential(layer, nn.ReLU()) for layer in layers))


def _short_mlp(device: torch.device) -> nn.Sequential:
    return _mlp(device)[:4]


def _context() -> BuildContext:
    return BuildContext(reference="gpu_jobs", rank=0, world_size=1, batch_size=1)


def _tokens(device: torch.device, batch_size: int) -> "DataLoader[Any]":
    length = sizes_for(device).tokens
    return _loader(ReadyBatches([_token_batch(device, batch_size, length) for _ in range(2)]))


def _token_batch(device: torch.device, batch_size: int, length: int) -> tuple[Tensor, Tensor]:
    vocabulary = sizes_for(device).vocabulary
    tokens = torch.randint(vocabulary, (batch_size, length + 1), device=device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _images(
    device: torch.device, batch_size: int, where: torch.device, *, pinned: bool = False
) -> "DataLoader[Any]":
    sizes = sizes_for(device)
    classes = 1000 if sizes.image >= 64 else 10
    batches = []
    for _ in range(2):
        images = torch.rand(batch_size, 3, sizes.image, sizes.image, device=where)
        labels = torch.randint(classes, (batch_size,), device=where)
        batches.append((images.pin_memory(), labels.pin_memory()) if pinned else (images, labels))
    return _loader(ReadyBatches(batches))


def _vectors(device: torch.device, batch_size: int) -> "DataLoader[Any]":
    width = sizes_for(device).mlp_width
    inputs, targets = (torch.rand(batch_size, width, device=device) for _ in range(2))
    return _loader(ReadyBatches([(inputs, targets)]))


def _loader(batches: ReadyBatches) -> "DataLoader[Any]":
    return DataLoader(batches, batch_size=2, collate_fn=_unchanged)


def _unchanged(batch: Any) -> Any:
    return batch


def _normalized(vectors: Tensor, norm: nn.LayerNorm) -> Tensor:
    centered = vectors - vectors.mean(dim=-1, keepdim=True)
    variance = (centered * centered).mean(dim=-1, keepdim=True)
    return centered / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias
