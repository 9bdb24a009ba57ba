"""Ranges: names for the parts of a step, in our traces and in profilers that read NVTX."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch.profiler import record_function

from scalescope.results.traces import events as trace
from scalescope.worker.training.step import Batches, Step

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


def with_input_range(batches: Batches, range_of: RangeOf) -> Batches:
    """The batches, with a range around the wait for each."""
    while True:
        with range_of(trace.INPUT):
            try:
                batch = next(batches)
            except StopIteration:
                return
        yield batch


@contextmanager
def parts_inside(step: Step, range_of: RangeOf) -> Iterator[None]:
    """Ranges around the backward passes and updates that a user's own step makes."""
    with ExitStack() as undo:
        undo.callback(setattr, torch.autograd, "backward", torch.autograd.backward)
        torch.autograd.backward = _around(torch.autograd.backward, range_of)
        for optimizer in step.optimizers:
            under_way: list[AbstractContextManager[None]] = []
            before = optimizer.register_step_pre_hook(_entering(under_way, range_of))
            undo.callback(before.remove)
            after = optimizer.register_step_post_hook(_leaving(under_way))
            undo.callback(after.remove)
        yield


def _around(backward: Callable[..., None], range_of: RangeOf) -> Callable[..., None]:
    def ranged(*args: Any, **kwargs: Any) -> None:
        with range_of(trace.BACKWARD):
            backward(*args, **kwargs)

    return ranged


def _entering(under_way: list[AbstractContextManager[None]], range_of: RangeOf) -> Callable[..., None]:
    def enter(*_: Any) -> None:
        under_way.append(range_of(trace.OPTIMIZER))
        under_way[-1].__enter__()

    return enter


def _leaving(under_way: list[AbstractContextManager[None]]) -> Callable[..., None]:
    def leave(*_: Any) -> None:
        under_way.pop().__exit__(None, None, None)

    return leave
