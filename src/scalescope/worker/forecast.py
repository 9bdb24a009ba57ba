"""Forecast: the memory of a training step counted on tensors without data, before it is run.

The one place that knows torch's private MemTracker and fake tensors. Where these do not work, for instance
with a model that looks at its own numbers, the reason is said instead.
"""

import copy
import dataclasses
import gc
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from scalescope.experiment.trial import Trial
from scalescope.worker.assembly import build_step
from scalescope.worker.step import Batch, Step, Workload
from scalescope.worker.tensor_bytes import state_of, tensors_in

_STEPS = 2  # the optimizer makes its state in the first
# Far above small batches, whose peak may lie where nothing depends on the batch.
_MULTIPLES = (256, 512)
_LONGEST_REASON = 300
_CATEGORIES = {
    "Parameter": "parameters",
    "Buffer": "buffers",
    "Gradient": "gradients",
    "Activation": "activations",
    "Temp": "temporary",
    "Optstate": "optimizer",
    "Other": "inputs",
    "Total": "peak",
}
Counters = dict[str, float | int | str | None]


def forecast(trial: Trial, workload: Workload, batch: Batch, batches: int, device: torch.device) -> Counters:
    """Bytes by category at the peak of a step on one rank: as asked, in bf16, and with checkpointing.

    `batches` as large as `batch` wait on the device. Gradients that stay in DDP's buckets stay here too.
    """
    variants: dict[str, Callable[[], dict[str, int]]] = {
        "as_asked": partial(_track, trial, workload, batch, batches, device)
    }
    if trial.settings["precision"] in ("fp32", "tf32"):
        in_bf16 = trial.replace(precision="bf16")
        variants["bf16"] = partial(_track, in_bf16, workload, batch, batches, device)
    if blocks_of(workload.model):
        variants["checkpointing"] = partial(
            _track, trial, workload, batch, batches, device, checkpointed=True
        )
    size = trial.micro_batch_size
    if all(len(one.shape) > 0 and len(one) == size for one in tensors_in(batch)):
        for times in _MULTIPLES:
            variants[f"at/{size * times}"] = partial(
                _track, trial, workload, batch, batches, device, times=times
            )
    found: Counters = {"forecast/largest_unit": _largest_unit(workload.model)}
    for name, track in variants.items():
        try:
            found |= {f"forecast/{name}/{category}": size for category, size in track().items()}
        except Exception as error:  # somebody's model, and a private interface: the measurement goes on
            reason = (str(error).splitlines() or [""])[0]
            found[f"forecast/{name}/problem"] = f"{type(error).__name__}: {reason}"[:_LONGEST_REASON]
    gc.collect()
    return found


def _track(
    trial: Trial,
    workload: Workload,
    batch: Batch,
    batches: int,
    device: torch.device,
    *,
    checkpointed: bool = False,
    times: int = 1,
) -> dict[str, int]:
    from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with FakeCopyMode(mode):
        model = copy.deepcopy(workload.model)
    if checkpointed:
        _checkpoint(model)
    with mode:
        waiting = [_like(batch, device, times) for _ in range(batches)]
        step = _step_alone(trial, dataclasses.replace(workload, model=model), device)
        tracker = MemTracker()
        tracker.track_external(model, step.optimizer, *_tensors(waiting))
        with tracker:
            for number in range(_STEPS):
                _run(step, waiting[number % batches])
                tracker.reset_mod_stats()
        own = sum(one.untyped_storage().nbytes() for one in state_of(step.optimizer))
    return _categories(tracker.get_tracker_snapshot("peak"), device, own)


def _step_alone(trial: Trial, workload: Workload, device: torch.device) -> Step:
    """The step on one rank, with gradients kept or dropped as the trial's strategy does it."""
    precision = trial.settings["precision"]
    # Scaling looks at numbers, which fake tensors have none of; both formats take as much memory.
    alone = trial.replace(
        strategy="single", world_size=1, precision="bf16" if precision == "fp16" else precision
    )
    step = build_step(alone, workload, device)
    optimizer = step.optimizer
    for group in optimizer.param_groups:
        # Torch decides by the type of the parameters, which is another one here.
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = device.type == "cuda"
    if keeps_gradients(trial):
        step = dataclasses.replace(step, clear=lambda: optimizer.zero_grad(set_to_none=False))
    return step


def keeps_gradients(trial: Trial) -> bool:
    """Whether gradients stay from step to step, in the buckets of the strategy."""
    if trial.settings["strategy"] == "scratch_ddp":
        return True
    return bool(trial.settings.get("gradient_as_bucket_view", False))


def _run(step: Step, batch: Batch) -> None:
    for remaining in range(step.accumulation_steps, 0, -1):
        with nullcontext() if remaining == 1 else step.no_sync():
            loss = step.forward(batch)
            step.backward(loss)
    step.apply()
    step.clear()


def _categories(
    snapshot: Mapping[Any, Mapping[Any, int]], device: torch.device, state: int
) -> dict[str, int]:
    """The tracker's figures by our names; what the optimizer takes beyond its state is temporary."""
    found = dict.fromkeys(_CATEGORIES.values(), 0)
    for place, sizes in snapshot.items():
        if torch.device(place).type == device.type:
            for kind, size in sizes.items():
                found[_CATEGORIES[str(getattr(kind, "value", kind))]] += int(size)
    passing = max(0, found["optimizer"] - state)
    return found | {"optimizer": found["optimizer"] - passing, "temporary": found["temporary"] + passing}


def _like(batch: Batch, device: torch.device, times: int) -> Batch:
    """A batch of the same shapes with so many times the samples; as fake tensors it holds no data."""
    if isinstance(batch, Tensor):
        shape = batch.shape if times == 1 else (len(batch) * times, *batch.shape[1:])
        return torch.empty(shape, dtype=batch.dtype, device=device)
    if isinstance(batch, Mapping):
        return {name: _like(part, device, times) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(_like(part, device, times) for part in batch)
    return batch


def _tensors(batches: list[Batch]) -> list[Tensor]:
    return list(itertools.chain.from_iterable(tensors_in(batch) for batch in batches))


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """What is checkpointed: in the container with most parameters, the blocks of the weightiest kind.

    A block has parts; checkpointing a lone layer keeps its input, which was kept anyway.
    """
    containers = [one for one in model.modules() if isinstance(one, nn.Sequential | nn.ModuleList)]
    candidates = [blocks for one in containers if (blocks := _weightiest(list(one.children())))]
    return max(candidates, key=lambda blocks: sum(map(parameter_bytes, blocks)), default=[])


def _weightiest(children: list[nn.Module]) -> list[nn.Module]:
    weights: Counter[type[nn.Module]] = Counter()
    with_parts = [one for one in children if any(True for _ in one.children())]
    for child in with_parts:
        weights[type(child)] += parameter_bytes(child)
    if not weights:
        return []
    kind = weights.most_common(1)[0][0]
    return [child for child in with_parts if type(child) is kind]


def parameter_bytes(module: nn.Module) -> int:
    """Bytes of all parameters of a module."""
    return sum(one.numel() * one.element_size() for one in module.parameters())


def _checkpoint(model: nn.Module) -> None:
    """Let every block forget its activations and compute them again when backward needs them."""
    from torch.utils.checkpoint import checkpoint

    for block in blocks_of(model):
        plain = block.forward

        def forward(*inputs: Any, _plain: Any = plain, **named: Any) -> Any:
            return checkpoint(_plain, *inputs, use_reentrant=False, preserve_rng_state=False, **named)

        block.forward = forward


def _largest_unit(model: nn.Module) -> int | None:
    """Parameter bytes of the largest part that FSDP gathers at a time."""
    from scalescope.worker.strategies.fsdp import units_of

    units = [parameter_bytes(unit) for unit in units_of(model)]
    return max([*units, parameter_bytes(model) - sum(units)], default=None)
