"""What DDP says of its buckets, and which parameters make most of their bytes."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from scalescope.results.traces.events import PREFIX

# ---- The parameters that most bytes of gradients belong to, and what share of their rows a batch changes


_MOST = 5
_LEAST_SHARE = 0.05  # of all bytes
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def largest_parameters(modules: Iterable[nn.Module], trained: Iterable[Tensor]) -> list[dict[str, Any]]:
    """Names, bytes and changed rows of the largest, as they are after a backward pass."""
    names = {id(parameter): name for module in modules for name, parameter in module.named_parameters()}
    parameters = [parameter for parameter in trained if parameter.requires_grad]
    total = sum(map(_size, parameters))
    largest = sorted(parameters, key=_size, reverse=True)[:_MOST]
    return [
        {
            "name": _own_name(names.get(id(parameter), "")),
            "bytes": _size(parameter),
            "rows": parameter.shape[0] if parameter.ndim == 2 else None,
            "changed_share": _changed_share(parameter),
        }
        for parameter in largest
        if _size(parameter) >= _LEAST_SHARE * total
    ]


def _size(parameter: Tensor) -> int:
    return parameter.numel() * parameter.element_size()


def _own_name(name: str) -> str:
    """As the user's model has it, inside of wrappers."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    while parts[:1] == ["module"]:
        parts = parts[1:]
    return ".".join(parts)


def _changed_share(parameter: Tensor) -> float | None:
    """Of the rows of a matrix, those with a gradient other than zero; None where that cannot be seen."""
    gradient = parameter.grad
    if gradient is None or gradient.ndim != 2 or hasattr(gradient, "to_local"):
        return None
    with torch.no_grad(), contextlib.suppress(RuntimeError, NotImplementedError):
        if gradient.is_sparse:
            share = int(gradient.coalesce().indices()[0].unique().numel()) / gradient.shape[0]
        else:
            share = float((gradient != 0).any(dim=1).float().mean())
        return share or None  # zero: it was cleared already
    return None


# ---- DDP's private logging data: its bucket sizes and times. Only this module knows the format


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
