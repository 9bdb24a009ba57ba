"""Stages: what each rank of a pipeline does in which order, and when that happens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

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
