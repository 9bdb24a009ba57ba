"""Loops for tests of the engine: our own over a given step, and one whose steps are made up."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from scalescope.experiment.trial import Trial
from scalescope.worker.benchmarks.train import OwnLoop, StepSchedule
from scalescope.worker.engine.steps import Engine
from scalescope.worker.process.group import Group
from scalescope.worker.process.position import Position
from scalescope.worker.training.feeding import Feed
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.ranges import RangeOf
from scalescope.worker.training.step import Batches, Step, StepMaker
from tests.builders.workers import CPU

Enter = Callable[[RangeOf], contextlib.AbstractContextManager[Any]]
ALONE = Group(rank=0, world_size=1, joined=False)


def own_loop(step: Step, batches: Batches, trial: Trial, position: Position | None = None) -> OwnLoop:
    """Our own loop on one rank of the CPU."""
    position = position or Position(None, 0, 1)
    return OwnLoop(
        workload=mock.Mock(),
        feed=Feed(batches=batches),
        steps=StepMaker(step, batches, position),
        schedule=StepSchedule(None, 1, None, step.accumulation_steps),
        trial=trial,
        group=ALONE,
        device=CPU,
        position=position,
        fault=None,
        known=Measurements(),
        bare=step,
    )


class PlainLoop:
    """Notes what the engine asks of it; `enter` makes the context in which steps are marked."""

    def __init__(self, window: int = 5, enter: Enter | None = None, ahead: int = 0) -> None:
        self._window, self._enter, self.ahead = window, enter, ahead
        self.alive_steps = self.forgotten = 0
        self.calls: list[str] = []

    def alive(self, steps: int) -> None:
        self.alive_steps += steps

    def end_warmup_step(self) -> None:
        self.calls.append("warm-up")

    def forget(self) -> None:
        self.forgotten += 1

    def batches_ahead(self) -> int:
        return self.ahead

    def windows(self, step_s: float, made: int) -> list[int]:
        return [self._window]

    def begin_window(self) -> None:
        self.calls.append("window")

    def end_window(self) -> None:
        self.calls.append("end")

    def collect(self, measurements: Measurements, garbage: Any) -> None:
        self.calls.append("collect")

    @contextlib.contextmanager
    def marked(self, range_of: RangeOf, count: int) -> Iterator[Any]:
        with contextlib.nullcontext() if self._enter is None else self._enter(range_of) as after_step:
            yield after_step


class OneRank:
    """Agrees with itself, or with others whose values are at least `others`."""

    rank = 0

    def __init__(self, others: float = 0.0) -> None:
        self._others = others
        self.met: list[str] = []

    def common(self, name: str, value: float) -> float:
        return value if name == "ahead" else max(value, self._others)

    def meet(self, name: str) -> None:
        self.met.append(name)


def engine_of(trial: Trial, loop: Any, device: Any = CPU, ranks: Any = None) -> Engine:
    return Engine(
        trial=trial, device=device, ranks=ranks or OneRank(), position=Position(None, 0, 1), loop=loop
    )
