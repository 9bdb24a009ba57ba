"""The expert's loop: the settings that are worth trying on a GPU, one after the other in one process.

    python benchmarks/tuning/hand_loops.py JOB [--steps 20]

Prints one line of JSON: the milliseconds per step of each set of settings, and how long all of it took. It
uses PyTorch alone; only the models of the built-in workloads come from scalescope.
"""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))

Loss = Callable[[Tensor, Tensor], Tensor]


class HandJob(NamedTuple):
    """A model, one batch of it, its loss and its optimizer's class."""

    model: nn.Module
    batch: tuple[Tensor, Tensor]
    loss: Loss
    optimizer: type[torch.optim.Optimizer]
    images: bool = False


class Variant(NamedTuple):
    """Settings an expert would try together."""

    name: str
    dtype: torch.dtype | None = None
    tf32: bool = False
    channels_last: bool = False
    fused: bool = False
    compile: str | None = None


_PLAIN = [
    Variant("fp32"),
    Variant("tf32", tf32=True),
    Variant("tf32 + fused", tf32=True, fused=True),
    Variant("bf16", torch.bfloat16),
    Variant("bf16 + fused", torch.bfloat16, fused=True),
    Variant("bf16 + fused + compile", torch.bfloat16, fused=True, compile="default"),
    Variant("tf32 + fused + reduce-overhead", tf32=True, fused=True, compile="reduce-overhead"),
]
_IMAGES = [
    Variant("fp32"),
    Variant("bf16", torch.bfloat16),
    Variant("bf16 + channels_last", torch.bfloat16, channels_last=True),
    Variant("bf16 + channels_last + fused", torch.bfloat16, channels_last=True, fused=True),
    Variant(
        "bf16 + channels_last + fused + compile",
        torch.bfloat16,
        channels_last=True,
        fused=True,
        compile="default",
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(description="The expert's loop, by hand.")
    parser.add_argument("job", choices=("transformer", "resnet50", "mlp256", "mlp4096", "own"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    began = time.monotonic()
    device = torch.device(options.device)
    times_ms = {}
    for variant in _IMAGES if options.job == "resnet50" else _PLAIN:
        torch.manual_seed(0)
        job = _job(options.job, device)
        with contextlib.suppress(torch.OutOfMemoryError):
            times_ms[variant.name] = measured_ms(job, variant, device, options.steps)
        del job
    print(json.dumps({"job": options.job, "ms": times_ms, "took_s": time.monotonic() - began}))
    return 0


def _job(name: str, device: torch.device) -> HandJob:
    if name == "own":
        import own_gpt

        model, data, loss, optimizer = own_gpt.build()
        ids, targets = (part[: own_gpt.BATCH].to(device) for part in data.tensors)
        return HandJob(model.to(device), (ids, targets), loss, type(optimizer))  # type: ignore[arg-type]
    workload, batch = {
        "transformer": ("transformer", 32),
        "resnet50": ("cnn", 256),
        "mlp256": ("mlp", 256),
        "mlp4096": ("mlp", 4096),
    }[name]
    return _built_in(workload, batch, device)


def _built_in(name: str, batch_size: int, device: torch.device) -> HandJob:
    """The model and the samples of a built-in workload, as on this device by default."""
    import importlib

    from scalescope.catalog import cards
    from scalescope.catalog.setting import settings_of
    from scalescope.worker.training.step import BuildContext

    card = cards.card("workloads", name)
    values = {setting.name: setting.default_for(device.type) for setting in settings_of(card)}
    module = importlib.import_module(f"scalescope.worker.workloads.{name}")
    context = BuildContext(reference=name, rank=0, world_size=1, batch_size=batch_size)
    workload = module.build(card(**values), device, context)
    generator = torch.Generator().manual_seed(0)
    inputs, targets = workload.data.synthesize(batch_size, generator)
    return HandJob(
        workload.model,
        (inputs.to(device), targets.to(device)),
        workload.loss,
        torch.optim.SGD,
        images=name == "cnn",
    )


def measured_ms(job: HandJob, variant: Variant, device: torch.device, steps: int) -> float:
    """Milliseconds per step with some settings: after a warm-up, the mean over all steps."""
    torch.backends.cuda.matmul.allow_tf32 = variant.tf32
    torch.backends.cudnn.allow_tf32 = variant.tf32
    model, (inputs, targets) = job.model, job.batch
    if variant.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        inputs = inputs.to(memory_format=torch.channels_last)
    kinds: dict[str, Any] = {"fused": True} if variant.fused else {}
    optimizer = job.optimizer(model.parameters(), lr=1e-4, **kinds)
    forward: Any = model
    if variant.compile is not None:
        forward = torch.compile(model, mode=None if variant.compile == "default" else variant.compile)

    def step() -> None:
        with _autocast(device, variant.dtype):
            loss = job.loss(forward(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(5):
        step()
    _finish(device)
    began = time.perf_counter()
    for _ in range(steps):
        step()
    _finish(device)
    took_s = time.perf_counter() - began
    torch._dynamo.reset()
    return took_s / steps * 1e3


@contextlib.contextmanager
def _autocast(device: torch.device, dtype: torch.dtype | None) -> Iterator[None]:
    if dtype is None:
        yield
        return
    with torch.autocast(device.type, dtype=dtype):
        yield


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
