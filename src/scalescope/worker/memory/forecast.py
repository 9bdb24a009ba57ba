"""Forecast: the memory of a training step, counted on tensors without data before the step runs.

Only this module knows torch's private MemTracker. If it or fake tensors fail, for instance with a model
that reads its own values, the counters hold the reason instead.
"""

import dataclasses
import gc
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.worker.counting import empty_like, fake_copy
from scalescope.worker.memory.allocator import blocks_of, checkpoint_blocks, gathered_bytes
from scalescope.worker.memory.measured import state_of, tensors_in
from scalescope.worker.training.assembly import build_step
from scalescope.worker.training.step import Batch, Step, Workload, batch_size_of

_STEPS = 2  # the optimizer allocates its state in the first
# Far above small batches, whose peak may not depend on the batch size.
_LEAST_TIMES = 256
_LEAST_LARGE = 2048
_LONGEST_REASON = 300
_CATEGORIES = {
    "Parameter": "parameters",
    "Buffer": "buffers",
    "Gradient": "gradients",
    "Activation": "activations",
    "Temp": "temporary",
    "Optstate": "optimizer",
    "Other": "inputs",
}
_TOTAL = "Total"
Counters = dict[str, float | int | str | None]


@dataclass(frozen=True, kw_only=True)
class ForecastJob:
    """What is trained on one rank; `batches` batches of the size of `batch` are on the device."""

    trial: Trial
    workload: Workload
    batch: Batch
    batches: int
    device: torch.device

    @property
    def size(self) -> int:
        return batch_size_of(self.batch)

    @property
    def can_grow(self) -> bool:
        """Whether every tensor of a batch has one row per sample."""
        return all(len(tensor.shape) > 0 and len(tensor) == self.size for tensor in tensors_in(self.batch))


def forecast(job: ForecastJob, room: int | None) -> Counters:
    """Bytes by category at the peak of a step on one rank, for as many variants as the purpose needs.

    `room` is about how much memory a rank may use. Gradients that stay in DDP's buckets stay here too.
    """
    purpose = job.trial.purpose
    counters: Counters = {"forecast/gathered": gathered_bytes(job.workload.model)}
    counters |= _forecast_variant("as_asked", partial(_track, job))
    if purpose != "compare" and job.can_grow:
        times = max(_LEAST_TIMES, -(-_LEAST_LARGE // job.size))
        for factor in (times, 2 * times):
            counters |= _forecast_variant(f"at/{job.size * factor}", partial(_track, job, times=factor))
    if purpose == "measure":
        counters |= _other_variants(job, _times_that_fit(counters, job, room))
    gc.collect()
    return counters


def _other_variants(job: ForecastJob, times: int) -> Counters:
    """The same training with other settings, at a batch so large that they matter."""
    trial, blocks = job.trial, blocks_of(job.workload.model)
    counters: Counters = {"forecast/other_ways_batch": job.size * times}
    counters |= _forecast_variant("now", partial(_track, job, times=times))
    if not trial.is_wrapped:  # ZeRO-1 would keep gradients in DDP's buckets
        counters |= _forecast_variant("kept", partial(_track, job, times=times, kept=True))
    if trial.precision in ("fp32", "tf32"):
        in_bf16 = dataclasses.replace(job, trial=trial.replace(precision="bf16"))
        counters |= _forecast_variant("bf16", partial(_track, in_bf16, times=times))
    if blocks:
        counters |= _forecast_variant("checkpointing", partial(_track, job, times=times, checkpointed=True))
    return counters


def _times_that_fit(counters: Counters, job: ForecastJob, room: int | None) -> int:
    """How many times the batch fits into the room, by the line through the large batches; 1 if unknown."""
    totals: Counter[int] = Counter()
    for name, size in counters.items():
        _, kind, *rest = name.split("/")
        if kind == "at" and isinstance(size, int):
            totals[int(rest[0])] += size
    if len(totals) < 2 or room is None:
        return 1
    (small, less), (large, more) = sorted(totals.items())
    slope = (more - less) / (large - small)
    fitting = small + (room - less) / slope if slope > 0 else 0.0
    return max(1, min(large, int(fitting)) // job.size)


def _forecast_variant(name: str, track: Callable[[], dict[str, int]]) -> Counters:
    try:
        return {f"forecast/{name}/{category}": size for category, size in track().items()}
    except Exception as error:  # a user's model and a private interface: the measurement continues
        reason = (str(error).splitlines() or [""])[0]
        return {f"forecast/{name}/problem": f"{type(error).__name__}: {reason}"[:_LONGEST_REASON]}


def _track(
    job: ForecastJob, *, times: int = 1, checkpointed: bool = False, kept: bool = False
) -> dict[str, int]:
    from torch.distributed._tools.mem_tracker import MemTracker

    if job.workload.own_step is not None:  # it may change what it refers to, such as a learning rate
        raise BadInput("the workload defines its own step, which cannot run without data")
    device, batches = job.device, job.batches
    mode, workload = fake_copy(job.workload)
    model = workload.model
    if checkpointed:
        checkpoint_blocks(model)
    with mode:
        resident = [empty_like(job.batch, device, times) for _ in range(batches)]
        step = _single_rank_step(job.trial, workload, device, kept=kept or keeps_gradients(job.trial))
        tracker = MemTracker()
        tracker.track_external(model, step.optimizer, *_tensors(resident))
        with tracker:
            for number in range(_STEPS):
                _run(step, resident[number % batches], tracker)
        state_bytes = sum(tensor.untyped_storage().nbytes() for tensor in state_of(step.optimizer))
    return _categories(tracker.get_tracker_snapshot("peak"), device, state_bytes)


def _single_rank_step(trial: Trial, workload: Workload, device: torch.device, *, kept: bool) -> Step:
    """The step on one rank, with gradients kept between steps or dropped."""
    precision = trial.precision
    # Gradient scaling reads values, which fake tensors do not have; both formats take as much memory.
    baseline = trial.replace(
        strategy="single", world_size=1, precision="bf16" if precision == "fp16" else precision
    )
    step = build_step(baseline, workload, device)
    optimizer = step.optimizer
    for group in optimizer.param_groups:
        # Torch decides by the type of the parameters, which differs for fake tensors.
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = device.type == "cuda"
    if kept:
        step = dataclasses.replace(step, clear=lambda: optimizer.zero_grad(set_to_none=False))
    return step


def keeps_gradients(trial: Trial) -> bool:
    """Whether the strategy keeps gradients allocated between steps."""
    layout = trial.strategy_card.memory_layout(trial.settings)
    return layout is not None and layout.keeps_gradients and not layout.copies_gradients


def _run(step: Step, batch: Batch, tracker: Any) -> None:
    for remaining in range(step.accumulation_steps, 0, -1):
        with nullcontext() if remaining == 1 else step.no_sync():
            loss = step.forward(batch)
            step.backward(loss)
        tracker.reset_mod_stats()  # it tracks one forward pass of a module at a time
    step.apply()
    step.clear()


def _categories(
    snapshot: Mapping[Any, Mapping[Any, int]], device: torch.device, state: int
) -> dict[str, int]:
    """The tracker's figures under our names; optimizer memory beyond its state is temporary."""
    sizes = dict.fromkeys(_CATEGORIES.values(), 0)
    for tracked_device, by_kind in snapshot.items():
        if torch.device(tracked_device).type == device.type:
            for kind, size in by_kind.items():
                name = str(getattr(kind, "value", kind))
                if name != _TOTAL:
                    sizes[_CATEGORIES[name]] += int(size)
    temporary = max(0, sizes["optimizer"] - state)
    return sizes | {"optimizer": sizes["optimizer"] - temporary, "temporary": sizes["temporary"] + temporary}


def _tensors(batches: list[Batch]) -> list[Tensor]:
    return list(itertools.chain.from_iterable(tensors_in(batch) for batch in batches))
