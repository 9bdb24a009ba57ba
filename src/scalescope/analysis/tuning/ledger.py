"""Search ledger: what a search of `tune` has measured, by stage, and what its budget still allows."""

import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.durations import LaunchDurations
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result, Stage

MOST_ROUNDS = 100  # of one stage; each stage measures anew what it compares
ALONE, CONFIRM, SCALING = Stage("alone"), Stage("confirm"), Stage("scaling")
_ENDING = ("confirm", "scaling")
_SLOW_START_S = 40.0  # what a slow start takes, as long as none was seen
_AGAIN = 0.4  # of a slow first launch, the next one takes: what it compiled is kept


class LaunchesNeeded(Exception):
    """Launches without which the search cannot go on."""

    def __init__(self, launches: "tuple[NeededLaunch, ...]") -> None:
        super().__init__(len(launches))
        self.launches = launches


class NeededLaunch(NamedTuple):
    """A launch of a trial in a round of a stage; `number` tells it from the trial's other launches."""

    trial: Trial
    number: int
    stage: Stage
    round: int


class OverBudget(Exception):
    """The budget has no room for launches that the search can do without."""


@dataclass(slots=True, kw_only=True)
class SearchLedger:
    """What was measured, by stage, and what the budget still allows.

    A candidate that failed once is out: it must not be recommended. The baseline, which is used already,
    is out where it failed twice, or in a way that will repeat itself.
    """

    results: Sequence[Result]
    seed: int
    baseline: str = ""  # its trial id
    failed: dict[str, str] = field(default_factory=dict)
    budget_s: float | None = None
    earlier: int = 0  # results that an interrupted run left; their time was another budget's
    is_slow: Callable[[Trial], bool] = lambda trial: False  # compiles first, for instance
    spent_s: float = 0.0
    durations: LaunchDurations = field(init=False, repr=False)
    is_ending: bool = False
    _numbers: "_NumberedLaunches" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        recent = self.results[self.earlier :]
        self.spent_s = sum(result.duration_s for result in recent)
        self.is_ending = any(_stage_of(result).kind in _ENDING for result in recent)
        self._numbers = _NumberedLaunches(self.results)
        # What went wrong by chance in an earlier run is tried again; one that a signal ended does not count.
        fleeting = [result for result in self.results[: self.earlier] if result.status in ("failed", "hang")]
        self.results = [
            result for result in self.results if result not in fleeting and result.status != "interrupted"
        ]
        self.durations = LaunchDurations(self.results)
        for result in self.results:
            if result.status != "ok":
                self.failed.setdefault(result.trial_id, f"{result.status}: {result.reason}")
        if not self._baseline_is_lost():
            self.failed.pop(self.baseline, None)

    def _baseline_is_lost(self) -> bool:
        """Whether the campaign gives up on it: one failure by chance is none."""
        bad = [
            result.status
            for result in self.results
            if result.trial_id == self.baseline and result.status != "ok"
        ]
        return len(bad) > 1 or any(status in ("oom", "invalid") for status in bad)

    def measured(
        self,
        trials: Iterable[Trial],
        count: int,
        stage: Stage,
        share: float | None = None,
        reserve_s: float = 0.0,
    ) -> dict[str, Configuration]:
        """`count` launches of each trial that can be run, made in turns; by trial id.

        With a share of the budget given, launches that would not fit into it are not asked for.
        """
        wanted = [trial for trial in trials if trial.trial_id not in self.failed]
        there = self._rounds_of(stage)
        first = 0 if stage == ALONE else self._block(wanted, count, there)
        missing: list[tuple[Trial, int]] = []
        for number in range(first, first + count):
            turn = [trial for trial in wanted if (trial.trial_id, number) not in there]
            random.Random(f"{self.seed}/{stage.kind}/{stage.attempt}/{number}").shuffle(turn)
            missing += [(trial, number) for trial in turn]
        if missing and share is not None:
            # Once the end has begun, going back would change what is being confirmed.
            gone_by = stage.kind not in _ENDING and self.is_ending
            if gone_by or not self._fits([trial for trial, _ in missing], share, reserve_s):
                raise OverBudget
        if missing:
            raise LaunchesNeeded(tuple(self._numbers.needed(trial, stage, n) for trial, n in missing))
        # Later launches of the stage do not count: reading again must decide as it did the first time.
        of_stage = [
            result
            for result in self.results
            if _stage_of(result) == stage and first <= _round_of(result) < first + count
        ]
        of_stage.sort(key=_round_of)
        ids = {trial.trial_id for trial in wanted}
        return {
            configuration.trial.trial_id: configuration
            for configuration in configurations(of_stage)
            if configuration.trial.trial_id in ids
        }

    def _rounds_of(self, stage: Stage) -> set[tuple[str, int]]:
        """What a stage has: (trial id, round) of every launch."""
        return {(result.trial_id, _round_of(result)) for result in self.results if _stage_of(result) == stage}

    def _block(self, wanted: Sequence[Trial], count: int, there: set[tuple[str, int]]) -> int:
        """The first round of launches that were made in turns.

        A trial may have been launched in this stage with another one, at another time: then all begin anew.
        """
        last = (MOST_ROUNDS // count - 1) * count
        for begin in range(0, last, count):
            numbers = range(begin, begin + count)
            made = [sum((trial.trial_id, number) in there for number in numbers) for trial in wanted]
            if not made or max(made) - min(made) <= 1:
                return begin
        return max(0, last)

    def rounds(self, trials: Iterable[Trial], stage: Stage) -> int:
        """How many launches of a stage every trial that can be run has."""
        there = self._rounds_of(stage)
        ids = [trial.trial_id for trial in trials if trial.trial_id not in self.failed]
        return next(n for n in range(MOST_ROUNDS) if not all((trial_id, n) in there for trial_id in ids))

    def _fits(self, trials: Sequence[Trial], share: float, reserve_s: float) -> bool:
        if self.budget_s is None:
            return True
        asked_s = sum(self.expected_s(trial) for trial in trials)
        return self.spent_s + asked_s + reserve_s <= share * self.budget_s

    def expected_s(self, trial: Trial) -> float:
        """How long a launch will take: as the last one of its kind did."""
        durations = self.durations.of(trial.trial_id)
        slow = self.is_slow(trial)
        if durations:
            return durations[-1] * (_AGAIN if slow and len(durations) == 1 else 1.0)
        return self._expected_first_s(slow)

    def expected_again_s(self, trial: Trial) -> float:
        """How long a launch will take once there was one."""
        if self.durations.of(trial.trial_id):
            return self.expected_s(trial)
        slow = self.is_slow(trial)
        return self._expected_first_s(slow) * (_AGAIN if slow else 1.0)

    def _expected_first_s(self, slow: bool) -> float:
        """As long as others of its kind did at first."""
        alike = [
            durations[0]
            for trial, durations in self._by_trial()
            if self.is_slow(trial) == slow and trial.trial_id not in self.failed
        ]
        if not alike:
            return _SLOW_START_S if slow else 0.0
        return statistics.median(alike)

    def _by_trial(self) -> list[tuple[Trial, list[float]]]:
        trials = {result.trial_id: result.trial for result in self.results}
        return [(trial, self.durations.of(trial_id)) for trial_id, trial in trials.items()]


def _stage_of(result: Result) -> Stage:
    return result.stage or ALONE


def _round_of(result: Result) -> int:
    return result.launch if result.round is None else result.round


class _NumberedLaunches:
    """Gives launches their numbers: a launch that is repeated keeps its number, a new one gets the next."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._by_round: dict[tuple[str, Stage, int], int] = {}
        self._next: dict[str, int] = {}
        for result in results:
            self._by_round[result.trial_id, _stage_of(result), _round_of(result)] = result.launch
            self._next[result.trial_id] = max(result.launch + 1, self._next.get(result.trial_id, 0))

    def needed(self, trial: Trial, stage: Stage, number: int) -> NeededLaunch:
        known = self._by_round.get((trial.trial_id, stage, number))
        if known is None:
            known = self._next.get(trial.trial_id, 0)
            self._next[trial.trial_id] = known + 1
        return NeededLaunch(trial, known, stage, number)
