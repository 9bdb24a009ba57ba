"""Simulation: one training step on N ranks, from one rank's profile and times of collectives."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeAlias

from scalescope.analysis.prediction.network import CollectiveTime, CollectiveTimes
from scalescope.analysis.prediction.profile import RankProfile
from scalescope.analysis.prediction.setup import RankLayout, Setup
from scalescope.analysis.prediction.timeline import Fitted, StepTimeline
from scalescope.analysis.prediction.timelines.data_parallel import simulate_data_parallel
from scalescope.analysis.prediction.timelines.fsdp import simulate_fsdp
from scalescope.analysis.prediction.timelines.lanes import slowdown
from scalescope.analysis.prediction.timelines.pipeline import simulate_pipeline
from scalescope.analysis.prediction.timelines.zero1 import simulate_zero1
from scalescope.errors import BadInput

Simulator: TypeAlias = Callable[[RankProfile, CollectiveTimes, Setup, Fitted], StepTimeline]

SIMULATORS: Mapping[str, Simulator] = {
    "single": simulate_data_parallel,  # one rank exchanges nothing
    "ddp": simulate_data_parallel,
    "zero1": simulate_zero1,
    "fsdp": simulate_fsdp,
    "pipeline": simulate_pipeline,
}

_MOST_PASSES = 64  # that are simulated; those after them take as long as the last of these
_PASSES_PER_STAGE = 4  # until the stages of a pipeline repeat what they do


def simulate(
    profile: RankProfile, times: CollectiveTimes, setup: Setup, fitted: Fitted | None = None
) -> StepTimeline:
    """The step of the setup's strategy, with the error that the network's times bring; one rank has none."""
    line = simulate_once(profile, times, setup, fitted)
    if setup.world_size == 1:
        return line
    later_s = simulate_once(profile, _Slower(times), setup, fitted).step_s
    return dataclasses.replace(line, network_error=max(0.0, later_s / line.step_s - 1.0))


def simulate_once(
    profile: RankProfile, times: CollectiveTimes, setup: Setup, fitted: Fitted | None = None
) -> StepTimeline:
    """The same without that error."""
    if setup.strategy not in SIMULATORS:
        known = ", ".join(SIMULATORS)
        raise BadInput(f"strategy {setup.strategy} cannot be predicted; these can: {known}")
    fitted = fitted or Fitted()
    passes = _passes(setup)
    issued_s = passes * profile.issue_s * slowdown(fitted, setup.world_size)
    if profile.issue_s:  # then contention was seen on the host, and nothing is known about that of GPUs
        fitted = dataclasses.replace(fitted, contention={})
    if setup.world_size == 1:
        setup = dataclasses.replace(setup, strategy="single", accumulation_steps=passes)
    most = max(_MOST_PASSES, _PASSES_PER_STAGE * setup.world_size if setup.strategy == "pipeline" else 0)
    simulator = SIMULATORS[setup.strategy]
    line = simulator(profile, times, _with_passes(setup, min(passes, most)), fitted)
    if passes > most:
        earlier = simulator(profile, times, _with_passes(setup, most // 2), fitted)
        line = _continued(line, earlier, (passes - most) / (most - most // 2))
    return _not_before_issued(line, issued_s)


def _passes(setup: Setup) -> int:
    """Forward and backward passes of a step."""
    return setup.micro_batches if setup.strategy == "pipeline" else setup.accumulation_steps


def _with_passes(setup: Setup, passes: int) -> Setup:
    if setup.strategy == "pipeline":
        return dataclasses.replace(setup, micro_batches=passes)
    return dataclasses.replace(setup, accumulation_steps=passes)


def _continued(line: StepTimeline, earlier: StepTimeline, times: float) -> StepTimeline:
    """The step with more passes: beyond `earlier` every pass takes the same time."""
    names = ("step_s", "exposed_s", "bubble_s", "straggling_s")
    values = {name: (getattr(line, name), getattr(earlier, name)) for name in names}
    longer = {name: now + times * (now - before) for name, (now, before) in values.items()}
    return dataclasses.replace(line, **longer)


def _not_before_issued(line: StepTimeline, issued_s: float) -> StepTimeline:
    """The step of GPUs whose host needs so long to issue it; what the host hides is not exposed."""
    if not issued_s:
        return line
    return dataclasses.replace(
        line,
        step_s=max(line.step_s, issued_s),
        exposed_s=min(line.exposed_s, max(0.0, line.step_s - issued_s)),
        host_s=issued_s if issued_s > line.step_s else 0.0,
    )


class _Slower:
    """Collectives that each take longer by their standard deviation: their errors have one cause."""

    def __init__(self, times: CollectiveTimes) -> None:
        self._times = times

    def time_of(self, collective: str, size_bytes: float, ranks: int, layout: RankLayout) -> CollectiveTime:
        time = self._times.time_of(collective, size_bytes, ranks, layout)
        return dataclasses.replace(time, time_s=time.time_s * (1.0 + time.error))
