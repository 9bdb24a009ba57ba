"""Ranges: names for the parts of a step, for traces of our own and for profilers that read NVTX."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.profiler import record_function

from scalescope.results import trace
from scalescope.worker.training.feeding import Feed
from scalescope.worker.training.step import Batch, Step

Result = TypeVar("Result")


@contextmanager
def named(name: str, device: torch.device) -> Iterator[None]:
    """A stretch of the host's time with a name, and what it starts on a GPU."""
    on_gpu = device.type == "cuda"
    with record_function(name):
        if on_gpu:
            torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            if on_gpu:
                torch.cuda.nvtx.range_pop()


def with_ranges(step: Step, device: torch.device) -> Step:
    """The step with names for its parts; `clear` is its last."""

    def around(name: str, part: Callable[..., Result]) -> Callable[..., Result]:
        def marked(*arguments: Any) -> Result:
            with named(name, device):
                return part(*arguments)

        return marked

    return dataclasses.replace(
        step,
        forward=around(trace.FORWARD, step.forward),
        backward=around(trace.BACKWARD, step.backward),
        apply=around(trace.OPTIMIZER, step.apply),
        clear=around(trace.CLEAR, step.clear),
    )


class _Marked:
    """Batches, each of which is waited for under a name."""

    def __init__(self, feed: Feed, device: torch.device) -> None:
        self._feed = feed
        self._device = device

    def __iter__(self) -> "_Marked":
        return self

    def __next__(self) -> Batch:
        with named(trace.INPUT, self._device):
            return next(self._feed.batches)

    def close(self) -> None:
        """End what stands behind."""
        self._feed.close()


def with_input_range(feed: Feed, device: torch.device) -> Feed:
    """The feed with a name for every wait."""
    return dataclasses.replace(feed, batches=_Marked(feed, device))
