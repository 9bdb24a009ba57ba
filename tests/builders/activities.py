"""Ranks made up for rules about their activity: a step of known length and what the host did in it."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalescope.analysis.recording import ReplayedStep, StepRecording
from scalescope.analysis.training.activity import LongStep, RankActivity, RankWork
from scalescope.diagnose.step_facts import StepFacts
from tests.builders.facts import ON_GPUS
from tests.builders.results import make_configuration, make_trial

STEP_S = 0.1
STEPS = 100


def facts_with(
    *ranks: RankActivity,
    on_gpu: bool = False,
    settings: Mapping[str, Any] | None = None,
    changes: Mapping[str, object] | None = None,
    **known: Any,
) -> StepFacts:
    """A configuration with a step of `STEP_S`, and these ranks in its only launch."""
    strategy = {"strategy": "single" if len(ranks) == 1 else "ddp"}
    trial = make_trial(world_size=len(ranks), **{**strategy, **(settings or {})})
    trial = trial.replace(**({**ON_GPUS} if on_gpu else {}), **(changes or {}))
    return StepFacts(
        path=Path("/run"),
        varied=(),
        strategies=(),
        configuration=make_configuration(trial, STEP_S),
        activities=ranks,
        launches=(ranks,),
        **known,
    )


def recorded(*, host_s: float) -> StepRecording:
    """A recording whose GPU waits so long for the host."""
    replay = make_replay(STEP_S, fast_host_s=STEP_S - host_s)
    return StepRecording(rank=0, parts={}, recorded_step_s=STEP_S, plain_step_s=STEP_S, replays=(replay,))


def make_replay(step_s: float, **otherwise_s: float) -> ReplayedStep:
    """A replayed step that takes as long whatever is otherwise, but for what is given; kernels are all."""
    names = [field.name for field in dataclasses.fields(ReplayedStep) if field.name.endswith("_s")]
    return ReplayedStep(**{**dict.fromkeys(names, step_s), "fast_gpu_s": 0.0, **otherwise_s})


def pausing(
    rank: int, pause_s: float, *, period: int = 10, part: str = "optimizer", gc: float = 0.0, **known: Any
) -> RankActivity:
    """A rank that pauses in a part of every so many steps; `gc` is the share of garbage collection."""
    paused = range(period - 1, STEPS, period)
    times_s = [STEP_S + pause_s * (step in paused) for step in range(STEPS)]
    rows = tuple(
        LongStep(step=step, beyond_s=pause_s, parts_s={part: pause_s}, gc_s=gc * pause_s) for step in paused
    )
    return RankActivity(rank=rank, step_times_s=times_s, long_steps=rows, **known)


def working(rank: int, elements: float, forward_s: float, by_step: Sequence[float] = ()) -> RankActivity:
    """A rank with so much work in every step."""
    return RankActivity(
        rank=rank,
        step_times_s=[STEP_S] * STEPS,
        host_s={"forward": forward_s, "backward": 2 * forward_s},
        work=RankWork(elements=elements, tokens=elements, variation=0.0, by_step=tuple(by_step)),
    )
