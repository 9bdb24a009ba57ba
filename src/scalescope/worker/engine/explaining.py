"""What follows on the timed window in the same processes: other trials of the same job, one after the other.

Each is measured for a few steps and stored as a launch of its own would be; what is not safe here, or fails,
gets a launch of its own (decision 34). A trial that removes and records nothing has other levers: it is tried
in blocks that alternate with blocks of the unchanged step (decision 36).
"""

import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from scalescope import clocks
from scalescope.errors import BadInput
from scalescope.experiment.explanations import NO_COMM, PRELOADED, has_ablation
from scalescope.experiment.trial import ABLATIONS, Trial
from scalescope.results.ranks import BESIDE, PHASE_TIME, AttachPhase, RankStage
from scalescope.results.result import WINDOW
from scalescope.worker.engine.recording import Recording, is_recorded
from scalescope.worker.engine.steps import Engine, Steps, steps_in_window
from scalescope.worker.process.rank import describe_error
from scalescope.worker.trace.recorder import LONGEST_PAUSE_S
from scalescope.worker.training.activity import CompilationWatch
from scalescope.worker.training.measurements import Measurements

PRELOADED_BATCHES = 8  # that are kept, and repeated
# Steps of a phase before it counts: batches are kept first, and hooks look where gradients are.
_SETTLING = {PRELOADED: PRELOADED_BATCHES + 1, NO_COMM: 4}
_AGAIN = -1  # instead of the number of a phase: the unchanged job
_AGAIN_S = 0.5
_LONGEST_S = 2.0  # of a phase: the same processes differ less from each other than launches do
_SETTLING_TRY = 6  # steps of other levers before they count: the first compile and allocate
_BLOCKS, _BLOCK_S, _LEAST_BLOCK_STEPS = 3, 0.3, 3  # of a try, and as many of the unchanged step
_LONGEST_TRY_S = 20.0  # by the steps as they are; a launch of its own makes fewer
_SLOWING = 1.2  # the last block over the first, each over that beside it
_SLOW_STEPS = "its steps are too long to alternate with others"
_AFTER_PROFILER = "steps after recorded ones are slower on a GPU"


class ExplainedLoop(Protocol):
    """A loop whose parts can be taken away while it runs."""

    def why_not_here(self, trial: Trial) -> str | None:
        """Why a trial cannot be measured in this process after the window; None where it can, empty where
        nobody can measure it."""
        ...

    def ablated(self, trial: Trial) -> AbstractContextManager[None]:
        """Inside, what the trial removes is removed from the loop."""
        ...

    def switched(self, trial: Trial) -> AbstractContextManager[None]:
        """Inside, the loop has the levers of the trial; it is entered several times."""
        ...


class ExplainedRanks(Protocol):
    """How ranks agree on what follows, and go on without one that failed."""

    def agree(self, name: str, text: str) -> str:
        """What rank 0 says."""
        ...

    def meet(self, name: str) -> None:
        """Wait until all ranks are here."""

    def arrive(self, name: str) -> None:
        """Be at a meeting without waiting for others."""


Store = Callable[[int, Measurements, int], None]  # of a phase by its number, after this many steps


@dataclass(kw_only=True)
class Explanations:
    """The phases that follow a window; each runs its steps on all ranks."""

    engine: Engine
    loop: ExplainedLoop
    ranks: ExplainedRanks
    phases: Sequence[AttachPhase]
    store: Store
    has_loader: bool
    step_s: float  # the mean of the window, by which the phases are planned
    plain_step_s: float  # its median
    longest_warmup_s: float
    # Results: why phases require a separate launch, by name; and the unchanged step, timed again.
    reasons: dict[str, str] = field(default_factory=dict)
    again_s: float | None = None
    took_s: float = 0.0  # all phases, also those that failed

    @cached_property
    def trials(self) -> list[Trial]:
        return [Trial(settings=phase.settings) for phase in self.phases]

    def measured(self) -> Steps[None]:
        """Rank 0 says what follows, for all ranks; then phase after phase."""
        agreed = self.ranks.agree("phases", json.dumps((*self._chosen(), self.step_s)))
        chosen, reasons, self.step_s = json.loads(agreed)  # all ranks record as many steps
        self.reasons |= reasons
        position = self.engine.position
        position.plan(position.begun + sum(steps for _, steps in chosen))
        position.enter(RankStage.STEADY, slowest_warmup_s=max(LONGEST_PAUSE_S, self.longest_warmup_s))
        for number, steps in chosen:
            self.ranks.meet(f"phase/{number}")
            yield from self._phase(number, steps)

    def _phase(self, number: int, steps: int) -> Steps[None]:
        """Takes its steps on all ranks, also where it fails on one; a failure costs only itself."""
        body, began = self._body(number, steps), clocks.monotonic()
        made = 0
        try:
            while True:
                next(body)
                yield
                made += 1
        except StopIteration as end:
            measured: Measurements = end.value
            measured.counters[PHASE_TIME] = clocks.monotonic() - began
            try:
                self._keep(number, measured, steps)
            except Exception as error:
                self._failed(number, error)
        except Exception as error:
            self._failed(number, error)
        finally:
            body.close()
        for _ in range(steps - made):
            yield
            self.engine.loop.alive(1)
        self.took_s += clocks.monotonic() - began

    def _failed(self, number: int, error: Exception) -> None:
        name = "the step again" if number == _AGAIN else _name_of(self.trials[number])
        self.reasons[name] = str(describe_error(error)["message"])
        self.ranks.arrive(_recorded_at(number))  # nobody waits for this rank

    def _keep(self, number: int, measured: Measurements, steps: int) -> None:
        if number == _AGAIN:
            self.again_s = statistics.fmean(measured.samples["step_time_s"])
        else:
            self.store(number, measured, steps)

    def _body(self, number: int, steps: int) -> Steps[Measurements]:
        trial = self._trial_of(number)
        if number != _AGAIN and is_try(trial):
            return (yield from self._tried(trial))
        measured = Measurements()
        settling = _settling(trial)
        with self.loop.ablated(trial):
            began = clocks.monotonic()
            for _ in range(settling):
                yield
                self.engine.position.completed += 1
                self.engine.loop.alive(1)
            if is_recorded(trial):
                measured = yield from self._recording(trial, _recorded_at(number)).recorded()
            else:
                began = clocks.monotonic()
                measured.samples["step_time_s"] = yield from self.engine.timed(steps - settling)
        measured.counters |= dict(zip(WINDOW, (began, clocks.monotonic()), strict=True))
        return measured

    def _tried(self, trial: Trial) -> Steps[Measurements]:
        """Blocks of steps with other levers and blocks without, in turns."""
        compilation = CompilationWatch()
        with self.loop.switched(trial):
            settling_s = yield from self.engine.timed(_SETTLING_TRY)
        count, first = self._block_steps(), clocks.monotonic()
        blocks: list[list[float]] = []
        beside: list[list[float]] = []
        for _ in range(_BLOCKS):
            with self.loop.switched(trial):
                compilation.begin()
                blocks.append((yield from self.engine.timed(count)))
                compilation.end()
            beside.append((yield from self.engine.timed(count)))
        tried_s = [step_s for block in blocks for step_s in block]
        measured = Measurements(samples={"warmup_step_time_s": settling_s, "step_time_s": tried_s})
        measured.counters = compilation.counters()
        if measured.counters.get("compile/compilations_inside"):
            raise BadInput("it was recompiled while it was timed")
        if uses_something_up(blocks, beside):
            raise BadInput("its steps became slower, as if they first used up prefetched batches")
        measured.counters |= dict(zip(WINDOW, (first, clocks.monotonic()), strict=True))
        measured.counters[BESIDE] = statistics.fmean(itertools.chain(*beside))
        return measured

    def _block_steps(self) -> int:
        return max(_LEAST_BLOCK_STEPS, steps_in_window(_BLOCK_S, self.step_s, 1))

    def _chosen(self) -> tuple[list[tuple[int, int]], dict[str, str]]:
        """The phases that this loop allows, with their steps; and why others need a start of their own."""
        chosen: list[tuple[int, int]] = []
        reasons: dict[str, str] = {}
        for number, trial in enumerate(self.trials):
            if self.phases[number].needs_loader not in (None, self.has_loader):
                continue
            reason = self.loop.why_not_here(trial)
            if reason is None and is_try(trial) and self._steps_of(trial) * self.step_s > _LONGEST_TRY_S:
                reason = _SLOW_STEPS
            if reason is None and has_ablation(trial, NO_COMM) and self._has_recorded(chosen):
                reason = _AFTER_PROFILER
            if reason is None:
                chosen.append((number, self._steps_of(trial)))
            elif reason:
                reasons[_name_of(trial)] = reason
        removed = sum(self._can_be_taken_back(number) for number, _ in chosen)
        if removed:  # time the unchanged job again
            steps = _settling(self.engine.trial) + self._window_steps(_AGAIN_S)
            chosen.insert(removed, (_AGAIN, steps))
        return chosen, reasons

    def _has_recorded(self, chosen: list[tuple[int, int]]) -> bool:
        """Whether steps are recorded before, on a GPU: its profiler slows the host from then on."""
        return self.engine.on_gpu and any(is_recorded(self.trials[number]) for number, _ in chosen)

    def _can_be_taken_back(self, number: int) -> bool:
        trial = self.trials[number]
        return not (is_try(trial) or is_recorded(trial) or has_ablation(trial, NO_COMM))

    def _window_steps(self, window_s: float) -> int:
        return steps_in_window(window_s, self.step_s, self.engine.options.min_steps)

    def _steps_of(self, trial: Trial) -> int:
        if is_try(trial):
            return _SETTLING_TRY + 2 * _BLOCKS * self._block_steps()
        if not is_recorded(trial):
            return _settling(trial) + self._window_steps(min(trial.window_s or _LONGEST_S, _LONGEST_S))
        return _settling(trial) + self._recording(trial, "").steps

    def _recording(self, trial: Trial, meeting: str) -> Recording:
        return Recording(
            engine=self.engine,
            trial=trial,
            step_s=self.step_s,
            plain_step_s=self.plain_step_s,
            meeting=meeting,
        )

    def _trial_of(self, number: int) -> Trial:
        return self.engine.trial if number == _AGAIN else self.trials[number]


def is_try(trial: Trial) -> bool:
    """Whether a trial is the same job with other levers."""
    return not trial.is_ablation and not is_recorded(trial)


def uses_something_up(blocks: Sequence[Sequence[float]], beside: Sequence[Sequence[float]]) -> bool:
    """Whether every block is slower than the one before, compared with the block beside it: a machine that
    others use slows both."""
    ratios = [sum(tried) / sum(plain) for tried, plain in zip(blocks, beside, strict=True)]
    return ratios == sorted(ratios) and ratios[-1] > _SLOWING * ratios[0]


def _settling(trial: Trial) -> int:
    return 1 + max((_SETTLING[name] for name in _SETTLING if has_ablation(trial, name)), default=0)


def _recorded_at(number: int) -> str:
    """Where ranks meet after the recorded steps of a phase."""
    return f"phase/{number}/recorded"


def _name_of(trial: Trial) -> str:
    """What a phase is, in words."""
    if is_recorded(trial):
        return "recorded steps"
    if is_try(trial):
        return trial.trial_id
    return " and ".join(ABLATIONS[name] for name in ABLATIONS if name in trial.ablations)
