"""Training jobs with one cause injected into them, or none, as users would write them.

    scalescope train --workload JOB.py:build --profile      where JOB.py calls `job_of`

A job is a model, its data, and a loss or a step. `tracing/rank.py` records the same jobs without scalescope.
Ranks that share two cores sleep inside an operator (`paced::compute`) instead of computing.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

from scalescope.job import Job

_SAMPLES = 1 << 16  # so that no epoch ends while steps are recorded
_PACED: Any = torch.library.Library("paced", "DEF")  # type: ignore[no-untyped-call]
_PACED.define("compute(Tensor x, float seconds) -> Tensor")


def _paced_compute(x: Tensor, seconds: float) -> Tensor:
    time.sleep(seconds)
    return x.clone()


_PACED.impl("compute", _paced_compute, "CompositeExplicitAutograd")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which rank builds a job, and where it computes."""

    rank: int
    ranks: int
    device: torch.device

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"


def job_of(name: str, arguments: dict[str, Any], place: Place) -> Job:
    """The job of a case on this rank; all ranks start from the same parameters."""
    torch.manual_seed(0)
    job = JOBS[name](place, **arguments)
    job.model.to(place.device)
    return job


def mean_of_output(output: Tensor, targets: object) -> Tensor:
    return output.float().mean()


def tokens_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def square_loss(output: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(output, targets)


class Ready:
    """The same batch for every step; a batch in host memory travels to the GPU in every step."""

    def __init__(self, *batch: Tensor) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        while True:
            yield self.batch


class SlowSamples(Dataset[tuple[Tensor, Tensor]]):
    """A data set that takes time to read every sample."""

    def __init__(self, sample_ms: float, width: int) -> None:
        self.sample_ms, self.width = sample_ms, width

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.sample_ms / 1e3)
        return torch.zeros(self.width), torch.zeros(self.width)


# --- who is late, and when ---


@dataclass(kw_only=True)
class Lateness:
    """By which factor this rank's work is longer in a step: of one rank, or of another one in each step."""

    place: Place
    late_rank: int | None = None
    excess: float = 0.0
    changing: bool = False
    number: int = 0

    def next_step(self) -> None:
        self.number += 1

    @property
    def share(self) -> float:
        """What is added in this step, as a share of the usual work."""
        late = self.number % self.place.ranks if self.changing else self.late_rank
        return self.excess if late == self.place.rank else 0.0


# --- ranks that sleep ---


class _Paced(torch.autograd.Function):
    """A layer that takes its time in both directions and has a gradient for its parameter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s, ctx.shape = backward_s, weight.shape
        return torch.ops.paced.compute(x, forward_s)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        gradient = torch.zeros(ctx.shape, device=outputs[0].device)
        return torch.ops.paced.compute(outputs[0], ctx.backward_s), gradient, None, None


def slept(x: Tensor, weight: Tensor, forward_s: float, backward_s: float) -> Tensor:
    """The input, after the time of a layer."""
    result: Tensor = _Paced.apply(x, weight, forward_s, backward_s)  # type: ignore[no-untyped-call]
    return result


class PacedLayer(nn.Module):
    """A parameter of this size and the times of its layer."""

    def __init__(self, megabytes: float, forward_s: float, backward_s: float, lateness: Lateness) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(max(1, int(megabytes * 1e6 / 4))))
        self.forward_s, self.backward_s, self.lateness = forward_s, backward_s, lateness

    def forward(self, x: Tensor) -> Tensor:
        factor = 1.0 + self.lateness.share
        return slept(x, self.weight, factor * self.forward_s, factor * self.backward_s)


class PacedModel(nn.Module):
    """Layers that sleep; a late host sleeps between them, in no operator."""

    def __init__(self, layers: list[PacedLayer], lateness: Lateness, host_late_s: float) -> None:
        super().__init__()
        self.layers, self.lateness, self.host_late_s = nn.ModuleList(layers), lateness, host_late_s

    def forward(self, x: Tensor) -> Tensor:
        self.lateness.next_step()
        x = x[:, :1]
        for layer in self.layers:
            if self.host_late_s:
                time.sleep(self.host_late_s / len(self.layers))
            x = layer(x)
        return x


def paced(
    place: Place,
    *,
    layers: int = 8,
    forward_ms: float = 30.0,
    backward_ms: float = 60.0,
    megabytes: float = 0.2,
    late_rank: int | None = None,
    excess: float = 0.0,
    changing: bool = False,
    host_rank: int | None = None,
    host_ms: float = 0.0,
    sample_ms: float = 0.0,
    pause_ms: float = 0.0,
    pause_rank: int | None = None,
    pause_every: int = 6,
    exchanges: int = 0,
) -> Job:
    """Ranks that sleep instead of computing, with gradients of `megabytes` in all."""
    lateness = Lateness(place=place, late_rank=late_rank, excess=excess, changing=changing)
    parts = [
        PacedLayer(megabytes / layers, forward_ms / 1e3 / layers, backward_ms / 1e3 / layers, lateness)
        for _ in range(layers)
    ]
    model = PacedModel(parts, lateness, host_ms / 1e3 if place.rank == host_rank else 0.0)
    data = SlowSamples(sample_ms, 4) if sample_ms else Ready(torch.zeros(16, 4), torch.zeros(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if pause_ms:
        pauses = pause_rank is None or pause_rank == place.rank
        save = Saving(pause_ms if pauses else 0.0, pause_every)
        return Job(model=model, data=data, optimizer=optimizer, step=plain_step(mean_of_output, after=save))
    if exchanges:
        after = Exchanges(place, exchanges)
        return Job(model=model, data=data, optimizer=optimizer, step=plain_step(mean_of_output, after=after))
    return Job(model=model, data=data, loss=mean_of_output, optimizer=optimizer)


Step = Callable[[Any, Any, Any], Tensor]


def plain_step(
    loss_of: Callable[[Tensor, Tensor], Tensor],
    *,
    before_update: Callable[[nn.Module], None] | None = None,
    after: Callable[[nn.Module], None] | None = None,
) -> Step:
    """Forward, backward and update, and something else of the user's."""

    def step(model: Any, batch: Any, optimizer: Any) -> Tensor:
        loss = loss_of(model(batch[0]), batch[1])
        loss.backward()  # type: ignore[no-untyped-call]
        if before_update is not None:
            before_update(model)
        optimizer.step()
        optimizer.zero_grad()
        if after is not None:
            after(model)
        return loss

    return step


class Saving:
    """Writes a checkpoint in every k-th step, onto storage that takes its time."""

    def __init__(self, pause_ms: float, every: int) -> None:
        self.pause_s, self.every, self.number = pause_ms / 1e3, every, 0

    def __call__(self, model: nn.Module) -> None:
        self.number += 1
        if self.number % self.every or not self.pause_s:
            return
        ends = time.monotonic() + self.pause_s
        with tempfile.TemporaryFile() as file:
            torch.save(model.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())
        time.sleep(max(0.0, ends - time.monotonic()))


class Exchanges:
    """Averages as many metrics over the ranks, each by an exchange of its own."""

    def __init__(self, place: Place, count: int) -> None:
        self.metrics = [torch.zeros(64, device=place.device) for _ in range(count)]

    def __call__(self, model: nn.Module) -> None:
        for metric in self.metrics:
            dist.all_reduce(metric)


# --- experts: tokens travel to the rank of their expert ---


class _Exchanged(torch.autograd.Function):
    """An all-to-all; its gradient travels back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, received: list[int], sent: list[int]) -> Tensor:
        ctx.received, ctx.sent = received, sent
        result = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(result, x.contiguous(), received, sent)
        return result

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        result = outputs[0].new_empty(sum(ctx.sent), outputs[0].shape[1])
        dist.all_to_all_single(result, outputs[0].contiguous(), ctx.sent, ctx.received)
        return result, None, None


def exchanged(x: Tensor, received: list[int], sent: list[int]) -> Tensor:
    """Rows of all ranks, with so many from each and to each."""
    result: Tensor = _Exchanged.apply(x, received, sent)  # type: ignore[no-untyped-call]
    return result


class ExpertLayer(nn.Module):
    """A dense part, and an expert per rank that gets its share of all tokens."""

    def __init__(self, place: Place, sent: list[int], width: int, dense_ms: float, expert_ms: float) -> None:
        super().__init__()
        self.sent, self.received = sent, [sent[place.rank]] * place.ranks
        self.dense, self.expert = nn.Linear(width, width), nn.Linear(width, width)
        self.wide = nn.Linear(width, 4 * width) if place.on_gpu else None
        self.narrow = nn.Linear(4 * width, width) if place.on_gpu else None
        # On the CPU ranks sleep, an expert as long as it has tokens.
        self.dense_s = dense_ms / 1e3
        self.expert_s = expert_ms / 1e3 * sum(self.received) / sum(sent)

    def forward(self, x: Tensor) -> Tensor:
        if self.wide is None or self.narrow is None:
            x = slept(x, self.dense.bias, self.dense_s, 2 * self.dense_s)
            arrived = exchanged(x, self.received, self.sent)
            worked = slept(arrived, self.expert.bias, self.expert_s, 2 * self.expert_s)
        else:
            x = x + self.dense(x)
            arrived = exchanged(x, self.received, self.sent)
            worked = self.narrow(functional.relu(self.wide(self.expert(arrived))))
        return x + exchanged(worked, self.sent, self.received)


def experts(
    place: Place,
    *,
    hot: float | None = None,
    hot_rank: int = 0,
    tokens: int = 1024,
    width: int = 128,
    layers: int = 2,
    dense_ms: float = 10.0,
    expert_ms: float = 10.0,
) -> Job:
    """A mixture of experts; `hot` is the share of all tokens that one rank's expert gets, else all alike."""
    sent = [tokens // place.ranks] * place.ranks
    if hot is not None:
        sent = [int(tokens * (1.0 - hot) / (place.ranks - 1))] * place.ranks
        sent[hot_rank] = tokens - sum(sent) + sent[hot_rank]
    parts = [ExpertLayer(place, sent, width, dense_ms, expert_ms) for _ in range(layers)]
    model = nn.Sequential(*parts)
    batch = torch.randn(sum(sent), width, device=place.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    if not place.on_gpu:  # layers that sleep use no weights
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))
    return Job(model=model, data=Ready(batch, batch), loss=mean_of_output, optimizer=optimizer)


# --- products: layers of matrix products ---


class Products(nn.Module):
    """Linear layers; one rank may do more, or prepare every layer on its host."""

    def __init__(
        self, width: int, layers: int, activation: type[nn.Module], lateness: Lateness, host_s: float
    ) -> None:
        super().__init__()
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width), activation())]
        self.body, self.lateness, self.host_s = nn.Sequential(*parts), lateness, host_s

    def forward(self, x: Tensor) -> Tensor:
        self.lateness.next_step()
        with torch.no_grad():  # a metric that only this rank computes: each is about a third of a step
            for _ in range(round(3 * self.lateness.share)):
                self.body(x)
        if not self.host_s:
            output: Tensor = self.body(x)
            return output
        for layer in self.body:
            _busy_host(self.host_s)
            x = layer(x)
        return x


def _busy_host(seconds: float) -> None:
    """Python that keeps the host from launching anything."""
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        pass


def products(
    place: Place,
    *,
    width: int = 1024,
    layers: int = 6,
    batch: int = 32768,
    late_rank: int | None = None,
    excess: float = 0.0,
    changing: bool = False,
    host_rank: int | None = None,
    host_ms: float = 0.0,
    exchanges: int = 0,
    bf16: bool = False,
    tanh: bool = False,
) -> Job:
    """A multilayer perceptron."""
    lateness = Lateness(place=place, late_rank=late_rank, excess=excess, changing=changing)
    host_s = host_ms / 1e3 if place.rank == host_rank else 0.0
    dtype = torch.bfloat16 if bf16 else torch.float32
    model = Products(width, layers, nn.Tanh if tanh else nn.ReLU, lateness, host_s).to(dtype)
    x = torch.randn(batch, width, device=place.device, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if exchanges:
        step = plain_step(square_loss, after=Exchanges(place, exchanges))
        return Job(model=model, data=Ready(x, x), optimizer=optimizer, step=step)
    return Job(model=model, data=Ready(x, x), loss=square_loss, optimizer=optimizer)


# --- language models ---


class Attention(nn.Module):
    """Attention in one kernel, in batched products, or head by head in Python."""

    def __init__(self, width: int, heads: int, kind: str) -> None:
        super().__init__()
        self.heads, self.kind = heads, kind
        self.parts, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.parts(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts.unbind(0)
        if self.kind == "loop":
            mixed = self.head_by_head(queries, keys, values)
        elif self.kind == "batched":
            scores = queries @ keys.transpose(-2, -1) * (width / self.heads) ** -0.5
            mixed = scores.softmax(-1) @ values
        else:
            mixed = functional.scaled_dot_product_attention(queries, keys, values)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return result

    def head_by_head(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        mixed = []
        for head in range(self.heads):
            scores = queries[:, head] @ keys[:, head].transpose(-2, -1) * queries.shape[-1] ** -0.5
            mixed.append(scores.softmax(-1) @ values[:, head])
        return torch.stack(mixed, 1)


def written_gelu(x: Tensor) -> Tensor:
    """GELU as its formula: a chain of small kernels."""
    return 0.5 * x * (1.0 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, attention: str, written: bool) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, attention)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.activation = written_gelu if written else functional.gelu

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        result: Tensor = x + self.down(self.activation(self.up(self.second(x))))
        return result


class LanguageModel(nn.Module):
    """A transformer that predicts tokens; it may compute its layers twice, or look at every one's output."""

    def __init__(
        self,
        *,
        width: int,
        layers: int,
        heads: int,
        words: int,
        length: int,
        attention: str,
        written: bool,
        recompute: bool,
        looks: bool,
    ) -> None:
        super().__init__()
        self.recompute, self.looks = recompute, looks
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, attention, written) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
            if self.looks and x.abs().max().item() > 1e4:
                raise ValueError("too large")
        logits: Tensor = self.head(self.norm(x))
        return logits


def language_model(
    place: Place,
    *,
    width: int = 768,
    layers: int = 8,
    heads: int = 12,
    words: int = 8192,
    length: int = 512,
    batch: int = 16,
    attention: str = "fused",
    written: bool = False,
    recompute: bool = False,
    looks: bool = False,
    logs_norms: bool = False,
    update_by_tensor: bool = False,
    bf16: bool = True,
) -> Job:
    """A small GPT; on the GPU in bf16."""
    model = LanguageModel(
        width=width,
        layers=layers,
        heads=heads,
        words=words,
        length=length,
        attention=attention,
        written=written,
        recompute=recompute,
        looks=looks,
    )
    model = model.to(torch.bfloat16 if bf16 and place.on_gpu else torch.float32).to(place.device)
    tokens = torch.randint(0, words, (batch, length + 1), device=place.device)
    options: dict[str, bool] = {"foreach": False} if update_by_tensor else {"fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **options)  # type: ignore[arg-type]
    data = Ready(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    if logs_norms:
        step = plain_step(tokens_loss, before_update=log_norms)
        return Job(model=model, data=data, optimizer=optimizer, step=step)
    return Job(model=model, data=data, loss=tokens_loss, optimizer=optimizer)


def log_norms(model: nn.Module) -> None:
    """The norm of every gradient, each read on the host."""
    norms = [part.grad.norm().item() for part in model.parameters() if part.grad is not None]
    assert norms


# --- long chains of elementwise operations, and images ---


class Chains(nn.Module):
    """Products with `repeats` activations between them, each written as its formula or as one kernel."""

    def __init__(self, width: int, layers: int, repeats: int, written: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.repeats, self.activation = repeats, written_gelu if written else functional.gelu

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            y = layer(x)
            for _ in range(self.repeats):
                y = self.activation(y)
            x = x + y
        return x


def chains(
    place: Place,
    *,
    width: int = 2048,
    layers: int = 4,
    batch: int = 16384,
    repeats: int = 4,
    written: bool = True,
) -> Job:
    dtype = torch.bfloat16 if place.on_gpu else torch.float32
    model = Chains(width, layers, repeats, written).to(dtype)
    x = torch.randn(batch, width, device=place.device, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    return Job(model=model, data=Ready(x, x), loss=square_loss, optimizer=optimizer)


class Convolutions(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1, bias=False)
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(layers))
        self.head = nn.Linear(width, 64)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for layer in self.layers:
            x = functional.relu(layer(x))
        result: Tensor = self.head(x.mean((2, 3)))
        return result


class PinnedAhead:
    """The next batch travels from pinned memory while the GPU computes on this one."""

    def __init__(self, batch: Tensor, targets: Tensor, device: torch.device) -> None:
        self.batch, self.targets, self.device = batch.pin_memory(), targets, device

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        ready = self.batch.to(self.device)
        while True:
            now = ready
            with torch.cuda.stream(stream):
                ready = self.batch.to(self.device, non_blocking=True)
            yield now, self.targets
            torch.cuda.current_stream().wait_stream(stream)


def images(
    place: Place,
    *,
    width: int = 64,
    layers: int = 6,
    batch: int = 384,
    side: int = 160,
    source: str = "pageable",
) -> Job:
    """A convolutional network in bf16; its images are on the device, in pageable memory, or pinned ahead."""
    dtype = torch.bfloat16 if place.on_gpu else torch.float32
    model = Convolutions(width, layers).to(dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(batch, 3, side, side, dtype=dtype).to(memory_format=torch.channels_last)
    targets = torch.zeros(batch, 64, dtype=dtype, device=place.device)
    data: object = Ready(x.to(place.device) if source == "device" else x, targets)
    if source == "ahead" and place.on_gpu:
        data = PinnedAhead(x, targets, place.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    return Job(model=model, data=data, loss=square_loss, optimizer=optimizer)


def samples(place: Place, *, sample_ms: float = 1.0, width: int = 1024, layers: int = 6) -> Job:
    """Products on samples that a loader reads."""
    lateness = Lateness(place=place)
    model = Products(width, layers, nn.ReLU, lateness, 0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return Job(model=model, data=SlowSamples(sample_ms, width), loss=square_loss, optimizer=optimizer)


JOBS: dict[str, Callable[..., Job]] = {
    function.__name__: function
    for function in (paced, experts, products, language_model, chains, images, samples)
}
