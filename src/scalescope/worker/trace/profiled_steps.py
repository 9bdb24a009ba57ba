"""Profiled steps: a few steps after a rank's timed ones, with marks for what they consist of."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from scalescope.catalog.benchmarks.train import Train
from scalescope.experiment.trial import Trial
from scalescope.results.result import AT_GPU_PACE
from scalescope.results.traces.events import BACKWARD, OPTIMIZER
from scalescope.worker.process.rank import describe_error
from scalescope.worker.rank_profile.marks import StepMarks, marked_gradients, trained_parameters
from scalescope.worker.rank_profile.moments import moments_of
from scalescope.worker.rank_profile.stored_profile import FAILED, StoredProfile, stored_profile
from scalescope.worker.rank_profile.timed_steps import timed_step, typical_step
from scalescope.worker.rank_profile.units import UnitMarks
from scalescope.worker.training.feeding import Feed
from scalescope.worker.training.ranges import RangeOf, with_input_range, with_ranges
from scalescope.worker.training.step import Step

WARMUPS = 1  # the first step with hooks
_MOST_STEPS = 8
_LEAST_STEPS = 1
_SHARE = 0.15  # of the timed steps, at most
_LONGEST_HEAD_START_S = 0.1

RunMarked = Callable[[Step, Feed], object]  # makes the steps


def profiled_count(trial: Trial, step_s: float, timed_steps: int) -> int:
    """How many steps to profile, the first with hooks included; 0 where a launch is not to be profiled.

    Profiles are of one rank that trains as it was asked to. A launch that counts its steps makes no more.
    """
    options = trial.options(Train)
    if trial.world_size > 1 or trial.is_ablation or options.eval or not options.is_timed:
        return 0
    if options.window is None or step_s > options.window:
        return 0
    return WARMUPS + max(_LEAST_STEPS, min(int(_SHARE * timed_steps) - WARMUPS, _MOST_STEPS))


def profile_steps(
    trial: Trial, step: Step, feed: Feed, device: torch.device, run_marked: RunMarked, step_s: float
) -> StoredProfile:
    """Make steps with marks; returns what they consist of, or why that is not known.

    `step_s` is the time of a step without marks.
    """
    try:
        marks_units = not (trial.is_compiled or step.is_whole or _is_compiled(step.module))
        # A user's own step may wait for the GPU, so that the host is never ahead of it.
        head_start_s = 0.0 if step.is_whole else min(step_s, _LONGEST_HEAD_START_S)
        marks = StepMarks(moments_of(device, head_start_s))
        profile = _profile(step, feed, marks, run_marked, marks_units=marks_units)
        if device.type == "cuda" and head_start_s:
            profile.counters[AT_GPU_PACE] = 1
        return profile
    except Exception as error:  # the launch has measured, which must not be lost
        return StoredProfile(counters={FAILED: describe_error(error)["message"]})


def _profile(
    step: Step, feed: Feed, marks: StepMarks, run_marked: RunMarked, *, marks_units: bool
) -> StoredProfile:
    parameters = trained_parameters(step.module)
    units = UnitMarks(step.module, marks) if marks_units else None
    with (
        marked_gradients(parameters, marks),
        nullcontext() if units is None else units.installed(),
        parts_inside(step, marks.part) if step.is_whole else nullcontext(),
    ):
        marks.begin()
        run_marked(with_ranges(step, marks.part), with_input_range(feed, marks.part))
    owners = None if units is None else units.owners(parameters)
    micro_batches = None if step.is_whole else step.accumulation_steps
    steps = [timed_step(marked, micro_batches, owners) for marked in marks.read()[WARMUPS:]]
    return stored_profile(typical_step(steps), len(steps), parameters, units)


def _is_compiled(model: nn.Module) -> bool:
    """Whether parts of a model are compiled, which leaves out hooks of modules, or compiles them anew."""
    return any(
        isinstance(module, torch.jit.ScriptModule)
        or hasattr(module, "_orig_mod")  # what torch.compile returns; its class is slow to import
        or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


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
        with range_of(BACKWARD):
            backward(*args, **kwargs)

    return ranged


def _entering(under_way: list[AbstractContextManager[None]], range_of: RangeOf) -> Callable[..., None]:
    def enter(*_: Any) -> None:
        under_way.append(range_of(OPTIMIZER))
        under_way[-1].__enter__()

    return enter


def _leaving(under_way: list[AbstractContextManager[None]]) -> Callable[..., None]:
    def leave(*_: Any) -> None:
        under_way.pop().__exit__(None, None, None)

    return leave
