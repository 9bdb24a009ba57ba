"""DDP's private logging data: its bucket sizes and times. Only this module knows the format."""

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from scalescope.results.traces.events import PREFIX

_NS = 1e-9
_NEVER = 2**31 - 1  # iterations between two that are timed


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpTimes:
    """The times of one iteration, measured by DDP itself."""

    backward_s: float
    communication_s: float  # from the first bucket's start to the last one's end
    overlap_s: float  # the part of it before backward's compute ended


class DdpWatch:
    """Reads the times of a model inside DDP; of several models there are none, for they may alternate."""

    def __init__(self, *wrapped: DistributedDataParallel, has_hook: bool) -> None:
        self._wrapped = wrapped
        self._has_hook = has_hook

    def pause(self) -> None:
        """Let DDP time no iteration after its tenth, because the host waits for the device in those it times.

        By default it times every hundredth. The sizes of the buckets are known from the first ones.
        """
        with contextlib.suppress(AttributeError):
            self._set_rate(_NEVER)

    def begin(self) -> None:
        """Let DDP time every iteration from now on."""
        self._set_rate(1)

    def _set_rate(self, iterations: int) -> None:
        for model in self._wrapped:
            model._set_ddp_runtime_logging_sample_rate(iterations)

    def times(self) -> DdpTimes | None:
        """The times of the newest measured iteration; on a GPU this waits for the device."""
        if len(self._wrapped) != 1:
            return None
        logged = _logging_data(self._wrapped[0])
        names = ("backward_compute_time", "backward_comm_time", "backward_compute_comm_overlap_time")
        values = [int(logged.get(name) or 0) for name in names]
        if min(values[:2]) <= 0:
            return None
        backward, communication, overlap = (value * _NS for value in values)
        return DdpTimes(backward_s=backward, communication_s=communication, overlap_s=overlap)

    def mark_buckets(self) -> None:
        """Give every bucket's all-reduce a named range; not possible if DDP already has a hook."""
        if not self._has_hook:
            for model in self._wrapped:
                model.register_comm_hook(None, _marked_exchange)
            self._has_hook = True


def _marked_exchange(state: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The all-reduce that DDP does without a hook, under a name that profilers show."""
    name = f"{PREFIX}bucket {bucket.index()}"
    on_gpu = bucket.buffer().is_cuda
    with record_function(name):
        if on_gpu:
            torch.cuda.nvtx.range_push(name)
        mean = bucket.buffer().div_(dist.get_world_size())
        work = dist.all_reduce(mean, async_op=True)
        if on_gpu:
            torch.cuda.nvtx.range_pop()
    assert work is not None  # None is for ranks outside the group
    done: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda future: future.value()[0])
    return done


def bucket_samples(wrapped: DistributedDataParallel) -> dict[str, list[float]]:
    """The sizes of DDP's buckets, first to last; empty if DDP does not report them."""
    logged = _logging_data(wrapped)
    text = str(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or "")
    sizes = [float(word) for word in text.split(",") if word.strip().isdigit()]
    return {"bucket_bytes": sizes} if sizes else {}


def _logging_data(wrapped: DistributedDataParallel) -> dict[str, Any]:
    try:
        logged: dict[str, Any] = wrapped._get_ddp_logging_data()
    except (AttributeError, RuntimeError):
        return {}
    return logged
