"""The timeline of a pipeline: micro-batches pass through stages, their gradients pass back."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from scalescope.analysis.prediction.network import CollectiveTime, CollectiveTimes
from scalescope.analysis.prediction.profile import RankProfile, Unit
from scalescope.analysis.prediction.setup import RankLayout, Setup
from scalescope.analysis.prediction.timeline import Fitted, StepTimeline, TimelineEvent
from scalescope.analysis.prediction.timelines.lanes import expected_maximum, slowdown
from scalescope.analysis.prediction.timelines.stages import (
    Compute,
    Direction,
    Schedule,
    StagesClock,
    StagesRun,
    StageTransfer,
    gpipe,
    one_forward_one_backward,
)
from scalescope.analysis.prediction.timelines.units import fitted_units, remainder
from scalescope.catalog.strategies.pipeline import balanced_cuts
from scalescope.errors import BadInput

_SCHEDULES: Mapping[str, Schedule] = {"gpipe": gpipe, "1f1b": one_forward_one_backward}
_ONE_PER_NODE = RankLayout(ranks_per_node=1)


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """The units of one rank; times are of one micro-batch."""

    forward_s: float
    backward_s: float
    parameter_bytes: int
    activation_bytes: int  # to the next stage

    @property
    def pass_s(self) -> float:
        return self.forward_s + self.backward_s


def simulate_pipeline(
    profile: RankProfile, times: CollectiveTimes, setup: Setup, fitted: Fitted
) -> StepTimeline:
    """One step; events are those of the first stage, which begins first and ends last."""
    slower = slowdown(fitted, setup.world_size)
    stages = stages_of(profile, setup.world_size)
    transfers = [_transfer_time(number, stages, times, setup) for number in range(len(stages) - 1)]
    timed = _run(stages, [transfer.time_s for transfer in transfers], setup, slower)
    without = _run(stages, [0.0] * len(transfers), setup, slower)
    updates = [profile.optimizer_s * slower * share for share in _shares(stages)]
    step_s = _last(timed, updates) + profile.input_s + profile.rest_s
    free_s = _last(without, updates) + profile.input_s + profile.rest_s
    computed_s = profile.input_s + profile.rest_s + _busiest(stages, updates, setup, slower)
    straggling_s = computed_s * profile.spread * expected_maximum(setup.world_size)
    assumptions = dict.fromkeys(text for transfer in transfers for text in transfer.assumptions)
    return StepTimeline(
        events=tuple(_events(timed, stages[0], updates[0], profile, step_s)),
        step_s=step_s + straggling_s,
        exposed_s=step_s - free_s,
        bubble_s=max(0.0, free_s - computed_s),
        straggling_s=straggling_s,
        assumptions=tuple(assumptions),
    )


def stages_of(profile: RankProfile, count: int) -> tuple[PipelineStage, ...]:
    """Consecutive units, so that the longest stage is as short as possible; what is in none comes last."""
    units = _joined(fitted_units(profile))
    if len(units) < count:
        raise BadInput(
            f"pipeline on {count} ranks requires {count} units with parameters; the profile has {len(units)}"
        )
    rest = remainder(profile, fitted_units(profile))
    *before, last = units
    units = [*before, _together(last, rest)]
    cuts = balanced_cuts([unit.forward_s + unit.backward_s for unit in units], count)
    return tuple(_stage(units[low:high]) for low, high in pairwise(cuts))


def _joined(units: tuple[Unit, ...]) -> list[Unit]:
    """Units without parameters belong to the one before them, or to the first behind."""
    joined: list[Unit] = []
    for unit in units:
        if joined and (not unit.parameter_bytes or not joined[-1].parameter_bytes):
            joined[-1] = _together(joined[-1], unit)
        else:
            joined.append(unit)
    return joined


def _together(first: Unit, second: Unit) -> Unit:
    return Unit(
        name=first.name,
        parameter_bytes=first.parameter_bytes + second.parameter_bytes,
        forward_s=first.forward_s + second.forward_s,
        backward_s=first.backward_s + second.backward_s,
        activation_bytes=second.activation_bytes,
    )


def _stage(units: list[Unit]) -> PipelineStage:
    return PipelineStage(
        forward_s=sum(unit.forward_s for unit in units),
        backward_s=sum(unit.backward_s for unit in units),
        parameter_bytes=sum(unit.parameter_bytes for unit in units),
        activation_bytes=units[-1].activation_bytes,
    )


def _transfer_time(
    number: int, stages: tuple[PipelineStage, ...], times: CollectiveTimes, setup: Setup
) -> CollectiveTime:
    """From that stage to the next, or back, which may be on another node."""
    per_node = setup.layout.ranks_per_node
    crosses = per_node is not None and number // per_node != (number + 1) // per_node
    layout = _ONE_PER_NODE if crosses else RankLayout()
    return times.time_of("sendrecv", stages[number].activation_bytes, 2, layout)


def _run(
    stages: tuple[PipelineStage, ...], transfers_s: list[float], setup: Setup, slower: float
) -> StagesRun:
    schedule = _SCHEDULES.get(setup.schedule)
    if schedule is None:
        raise BadInput(f"schedule {setup.schedule} cannot be predicted; these can: {', '.join(_SCHEDULES)}")

    def pass_s(stage: int, direction: Direction) -> float:
        whole = stages[stage]
        return slower * (whole.forward_s if direction == "forward" else whole.backward_s)

    def transfer_s(transfer: StageTransfer) -> float:
        return transfers_s[transfer.link]

    return StagesClock(pass_s, transfer_s).run(schedule, len(stages), setup.micro_batches)


def _shares(stages: tuple[PipelineStage, ...]) -> list[float]:
    """The part of all parameters that each stage updates."""
    total = sum(stage.parameter_bytes for stage in stages)
    return [stage.parameter_bytes / total if total else 1.0 / len(stages) for stage in stages]


def _last(run: StagesRun, updates: list[float]) -> float:
    return max(end_s + update_s for end_s, update_s in zip(run.ends_s, updates, strict=True))


def _busiest(stages: tuple[PipelineStage, ...], updates: list[float], setup: Setup, slower: float) -> float:
    return max(
        stage.pass_s * slower * setup.micro_batches + update_s
        for stage, update_s in zip(stages, updates, strict=True)
    )


def _events(
    run: StagesRun, first: PipelineStage, update_s: float, profile: RankProfile, step_s: float
) -> list[TimelineEvent]:
    """Those of the first stage; numbers are those of its micro-batches."""
    begin_s = profile.input_s
    events = [TimelineEvent(lane="compute", name="input", begin_s=0.0, end_s=begin_s)] if begin_s else []
    for span in run.passes[0]:
        assert isinstance(span.what, Compute)
        events.append(
            TimelineEvent(
                lane="compute",
                name=span.what.direction,
                begin_s=begin_s + span.begin_s,
                end_s=begin_s + span.end_s,
                bucket=span.what.micro_batch,
            )
        )
    for transfer, span in run.transfers.items():
        if transfer.link == 0 and span.end_s > span.begin_s:
            events.append(
                TimelineEvent(
                    lane="communication",
                    name="sendrecv",
                    begin_s=begin_s + span.begin_s,
                    end_s=begin_s + span.end_s,
                    bucket=transfer.micro_batch,
                    size_bytes=first.activation_bytes,
                )
            )
    done_s = begin_s + run.ends_s[0]
    events.append(TimelineEvent(lane="compute", name="optimizer", begin_s=done_s, end_s=done_s + update_s))
    if profile.rest_s:
        events.append(
            TimelineEvent(lane="compute", name="rest", begin_s=step_s - profile.rest_s, end_s=step_s)
        )
    return events
