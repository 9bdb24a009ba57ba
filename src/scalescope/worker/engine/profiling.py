"""The profile of one rank's step: its parts, gradients and units, from a few marked steps after the timed."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

import torch
from torch import nn

from scalescope.catalog.benchmarks.train import Train
from scalescope.experiment.trial import Trial
from scalescope.results.result import AT_GPU_PACE
from scalescope.worker.engine.steps import Engine, Steps
from scalescope.worker.process.rank import describe_error
from scalescope.worker.rank_profile import (
    FAILED,
    StepMarks,
    StoredProfile,
    UnitMarks,
    marked_gradients,
    moments_of,
    stored_profile,
    timed_step,
    typical_step,
)
from scalescope.worker.training.ranges import RangeOf

WARMUPS = 1  # the first step with hooks
_MOST_STEPS = 8
_LEAST_STEPS = 1
_SHARE = 0.15  # of the timed steps, at most
_LONGEST_HEAD_START_S = 0.1


@dataclass(frozen=True, kw_only=True)
class ProfiledModel:
    """What is profiled."""

    parameters: Sequence[torch.Tensor]
    units_of: nn.Module | None = None  # whose units can be marked
    micro_batches: int | None = None  # where they are known
    may_wait_for_gpu: bool = False  # the host is then never ahead of it
    inside: Callable[[RangeOf], AbstractContextManager[None]] | None = None  # ranges of parts inside a step
    counters: dict[str, float | int | str | None] = field(default_factory=dict)


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


def profiled(
    engine: Engine, times_s: Sequence[float], subject: Callable[[], ProfiledModel]
) -> Steps[StoredProfile]:
    """The profile after timed steps, or why there is none: a failure costs the profile alone."""
    step_s = math.fsum(times_s) / len(times_s)
    count = profiled_count(engine.trial, step_s, len(times_s))
    if not count:
        return StoredProfile()
    try:
        return (yield from _profiled(engine, count, step_s, subject()))
    except Exception as error:
        return StoredProfile(counters={FAILED: describe_error(error)["message"]})


def _profiled(engine: Engine, count: int, step_s: float, model: ProfiledModel) -> Steps[StoredProfile]:
    head_start_s = 0.0 if model.may_wait_for_gpu else min(step_s, _LONGEST_HEAD_START_S)
    marks = StepMarks(moments_of(engine.device, head_start_s))
    units = None if model.units_of is None else UnitMarks(model.units_of, marks)
    with ExitStack() as hooks:
        hooks.enter_context(marked_gradients(model.parameters, marks))
        if units is not None:
            hooks.enter_context(units.installed())
        if model.inside is not None:
            hooks.enter_context(model.inside(marks.part))
        after_step = hooks.enter_context(engine.loop.marked(marks.part, count))
        marks.begin()
        yield from engine.timed(count, after_step)
    owners = None if units is None else units.owners(model.parameters)
    steps = [timed_step(marked, model.micro_batches, owners) for marked in marks.read()[WARMUPS:]]
    profile = stored_profile(typical_step(steps), len(steps), model.parameters, units)
    if FAILED not in profile.counters:
        profile.counters |= model.counters
        if engine.on_gpu and head_start_s:
            profile.counters[AT_GPU_PACE] = 1
    return profile


def is_compiled(model: nn.Module) -> bool:
    """Whether parts of a model are compiled, which leaves out hooks of modules, or compiles them anew."""
    return any(
        isinstance(module, torch.jit.ScriptModule)
        or hasattr(module, "_orig_mod")  # what torch.compile returns; its class is slow to import
        or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
