"""Ranges: names for the parts of a step, in our traces and in profilers that read NVTX."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch.profiler import record_function

from scalescope.results.traces import events as trace
from scalescope.worker.training.feeding import Feed
from scalescope.worker.training.step import Batch, Step

Result = TypeVar("Result")
RangeOf = Callable[[str], AbstractContextManager[None]]  # what surrounds a part of a step, by its name


@contextmanager
def named(name: str, device: torch.device) -> Iterator[None]:
    """A named range on the host, and around the GPU work it launches."""
    on_gpu = device.type == "cuda"
    with record_function(name):
        if on_gpu:
            torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            if on_gpu:
                torch.cuda.nvtx.range_pop()


def ranges_on(device: torch.device) -> RangeOf:
    """Named ranges for work on a device."""
    return partial(named, device=device)


def with_ranges(step: Step, range_of: RangeOf) -> Step:
    """The step with a range around each part; `clear` is the last."""

    def around(name: str, part: Callable[..., Result]) -> Callable[..., Result]:
        def marked(*arguments: Any) -> Result:
            with range_of(name):
                return part(*arguments)

        return marked

    if step.is_whole:
        return dataclasses.replace(
            step,
            forward=around(trace.WHOLE_STEP, step.forward),
            clear=around(trace.CLEAR, step.clear),
        )
    return dataclasses.replace(
        step,
        forward=around(trace.FORWARD, step.forward),
        backward=around(trace.BACKWARD, step.backward),
        apply=around(trace.OPTIMIZER, step.apply),
        clear=around(trace.CLEAR, step.clear),
    )


@contextmanager
def step_marks(step: Step, numbers: range) -> Iterator[Step]:
    """The step with a mark around each whole step: each begins where the one before ended.

    HTA and TensorBoard divide a trace by these marks; `numbers` are those of the steps to come.
    """
    marks = [record_function(f"{trace.STEP}{number}") for number in numbers]
    with ExitStack() as current:

        def begin_next() -> None:
            current.close()
            if marks:
                current.enter_context(marks.pop(0))

        def clear() -> None:
            step.clear()
            begin_next()

        begin_next()
        yield dataclasses.replace(step, clear=clear)


class _MarkedBatches:
    """Batches with a range around the wait for each."""

    def __init__(self, feed: Feed, range_of: RangeOf) -> None:
        self._feed = feed
        self._range_of = range_of

    def __iter__(self) -> "_MarkedBatches":
        return self

    def __next__(self) -> Batch:
        with self._range_of(trace.INPUT):
            return next(self._feed.batches)

    def close(self) -> None:
        """Close the feed."""
        self._feed.close()


def with_input_range(feed: Feed, range_of: RangeOf) -> Feed:
    """The feed with a range around every wait."""
    return dataclasses.replace(feed, batches=_MarkedBatches(feed, range_of))
