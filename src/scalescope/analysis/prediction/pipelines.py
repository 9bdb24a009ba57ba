"""What happens when in a step of a pipeline: its stages, and micro-batches between them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from scalescope.analysis.prediction.collective_times import CollectiveTime, CollectiveTimes
from scalescope.analysis.prediction.profiles import RankProfile, Unit
from scalescope.analysis.prediction.setup import Fitted, RankLayout, Setup, StepTimeline, TimelineEvent
from scalescope.analysis.prediction.timelines import expected_maximum, fitted_units, remainder, slowdown
from scalescope.catalog.strategies.pipeline import balanced_cuts
from scalescope.errors import BadInput

# ---- Stages: what each rank of a pipeline does in which order, and when that happens


Direction = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class StageTransfer:
    """Activations to the next stage, or their gradients back; `link` is the number of the stage before it."""

    direction: Direction
    link: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Compute:
    """A pass over one micro-batch."""

    direction: Direction
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Post:
    """Start sending or receiving; nothing waits."""

    transfers: tuple[StageTransfer, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on when these have arrived; those that were not posted are posted now."""

    transfers: tuple[StageTransfer, ...]


Action: TypeAlias = Compute | Post | Wait
Schedule: TypeAlias = Callable[[int, int, int], Iterator[Action]]


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time: a pass of a stage, or a transfer."""

    what: Compute | StageTransfer
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class StagesRun:
    """When each stage was done, what each computed, and all transfers."""

    ends_s: tuple[float, ...]
    passes: tuple[tuple[Span, ...], ...]
    transfers: dict[StageTransfer, Span]


def _edge(direction: Direction, link: int, micro_batch: int, stages: int) -> tuple[StageTransfer, ...]:
    """The transfer over that link; there is none before the first stage and behind the last."""
    return (StageTransfer(direction, link, micro_batch),) if 0 <= link < stages - 1 else ()


def gpipe(stage: int, stages: int, micro_batches: int) -> Iterator[Action]:
    """All micro-batches forward, then all back."""
    sent: tuple[StageTransfer, ...] = ()
    for number in range(micro_batches):
        yield Wait(_edge("forward", stage - 1, number, stages))
        yield Compute("forward", number)
        sent += _edge("forward", stage, number, stages)
        yield Post(sent[-1:])
    yield Wait(sent)
    sent = ()
    for number in range(micro_batches):
        yield Wait(_edge("backward", stage, number, stages))
        yield Compute("backward", number)
        sent += _edge("backward", stage - 1, number, stages)
        yield Post(sent[-1:])
    yield Wait(sent)


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> Iterator[Action]:
    """As PyTorch's Schedule1F1B: it waits for what it sends together with what it receives."""
    warm_up = min(micro_batches, stages - stage)
    posted: tuple[StageTransfer, ...] = ()
    sending: tuple[StageTransfer, ...] = ()
    for number in range(warm_up):
        yield Wait(_edge("forward", stage - 1, number, stages))
        yield Compute("forward", number)
        yield Wait(posted)
        sending = _edge("forward", stage, number, stages)
        if number < warm_up - 1:
            posted = sending
            yield Post(posted)
    for number in range(micro_batches):
        cools_down = warm_up + number > micro_batches
        if cools_down:  # gradients are sent while the next are received
            posted = _edge("backward", stage - 1, number - 1, stages)
            yield Post(posted)
            sending = ()
        yield Wait(sending + _edge("backward", stage, number, stages))
        yield Compute("backward", number)
        if cools_down:
            yield Wait(posted)
        if warm_up + number < micro_batches:
            received = _edge("forward", stage - 1, warm_up + number, stages)
            yield Wait(_edge("backward", stage - 1, number, stages) + received)
            yield Compute("forward", warm_up + number)
            sending = _edge("forward", stage, warm_up + number, stages)
    yield Wait(_edge("backward", stage - 1, micro_batches - 1, stages))


class StagesClock:
    """Runs the actions of all stages; a transfer begins when both of its ends were posted."""

    def __init__(
        self,
        pass_s: Callable[[int, Direction], float],
        transfer_s: Callable[[StageTransfer], float],
    ) -> None:
        self._pass_s = pass_s
        self._transfer_s = transfer_s
        self._posted: dict[StageTransfer, dict[int, float]] = {}
        self._done: dict[StageTransfer, Span] = {}
        self._now_s: list[float] = []
        self._passes: list[list[Span]] = []

    def run(self, schedule: Schedule, stages: int, micro_batches: int) -> StagesRun:
        """All stages from the beginning to the end of a step."""
        self._now_s = [0.0] * stages
        self._passes = [[] for _ in range(stages)]
        programs = [schedule(stage, stages, micro_batches) for stage in range(stages)]
        waiting: dict[int, Wait] = {}
        runnable = list(range(stages))
        while runnable:
            stage = runnable.pop()
            if stage in waiting and not self._has_all(waiting[stage]):
                continue  # it went on meanwhile, and waits again
            blocked = self._go_on(stage, programs[stage], waiting.pop(stage, None))
            if blocked is not None:
                waiting[stage] = blocked
            neighbours = (stage - 1, stage + 1)
            runnable += [other for other in neighbours if other in waiting and self._has_all(waiting[other])]
        assert not waiting, "a schedule in which stages wait for each other"
        return StagesRun(tuple(self._now_s), tuple(map(tuple, self._passes)), self._done)

    def _go_on(self, stage: int, program: Iterator[Action], blocked: Wait | None) -> Wait | None:
        """Until the stage has to wait for another; what it then waits for."""
        if blocked is not None:
            self._arrive(stage, blocked)
        for action in program:
            match action:
                case Compute():
                    begin_s = self._now_s[stage]
                    self._now_s[stage] += self._pass_s(stage, action.direction)
                    self._passes[stage].append(Span(action, begin_s, self._now_s[stage]))
                case Post():
                    self._post(stage, action.transfers)
                case Wait():
                    self._post(stage, action.transfers)
                    if not self._has_all(action):
                        return action
                    self._arrive(stage, action)
        return None

    def _post(self, stage: int, transfers: Sequence[StageTransfer]) -> None:
        for transfer in transfers:
            ends = self._posted.setdefault(transfer, {})
            ends.setdefault(stage, self._now_s[stage])
            if len(ends) == 2 and transfer not in self._done:
                begin_s = max(ends.values())
                self._done[transfer] = Span(transfer, begin_s, begin_s + self._transfer_s(transfer))

    def _has_all(self, wait: Wait) -> bool:
        return all(transfer in self._done for transfer in wait.transfers)

    def _arrive(self, stage: int, wait: Wait) -> None:
        ends_s = [self._done[transfer].end_s for transfer in wait.transfers]
        self._now_s[stage] = max([self._now_s[stage], *ends_s])


# ---- The timeline of a pipeline: micro-batches pass through stages, their gradients pass back


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
    """Consecutive units with the longest stage as short as possible; what is in none comes last."""
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
        raise BadInput(f"schedule {setup.schedule} cannot be predicted; supported: {', '.join(_SCHEDULES)}")

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
