"""The search of `tune`: what to launch next, decided from the results alone, so that it can be resumed.

It is written as if everything were measured already. What is not raises `Needs`, is launched, and the search
is read again from its beginning.
"""

import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.statistics import Estimate, ratio_of_logs
from scalescope.analysis.tuning import Comparison, compare_all, loss_of
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result


class Shares(NamedTuple):
    """Parts of the budget that levers looked at alone may take."""

    quick: float
    slow: float
    confirming: bool  # whether what confirming takes is kept apart besides


SCREENING = 2  # launches of everything, before what is clearly worse is dropped
_CLEARLY = 0.15  # slower in every launch by this much
MOST_LAUNCHES = 100  # launch numbers of one stage; each stage measures anew what it compares
_WORTH_KEEPING = math.log(1.01)
_RETESTS = 3
_OBVIOUS = math.log(1.25)  # one pair of launches settles a difference like that
# Shares of the budget that looking at levers one by one may take: confirming the best needs the rest, and
# combining them more of it. What starts slowly is needed on top of the best then, rather than alone.
ALONE = Shares(quick=1.0, slow=0.65, confirming=True)
BEFORE_COMBINING = Shares(quick=0.3, slow=0.15, confirming=False)
_SLOW_START_S = 40.0  # what a slow start takes, as long as none was seen
_AGAIN = 0.4  # of a slow first launch, the next one takes: what it compiled is kept
_FIRST_REMOVAL = 40
FINAL_STAGE = 90
SCALING_STAGE = 95


class Needs(Exception):
    """Launches without which the search cannot go on."""

    def __init__(self, launches: tuple[tuple[Trial, int], ...]) -> None:
        super().__init__(len(launches))
        self.launches = launches


class NoTime(Exception):
    """The budget has no room for launches that the search can do without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One step of combining: a configuration with a lever more or less, and whether that was kept.

    `speedup` is what the lever gives in that company; None where the budget left no time to see.
    """

    text: str
    adds: bool
    speedup: float | None
    kept: bool
    launches: int = 0  # of each of the two
    loss_differs: bool = False


@dataclass(slots=True, kw_only=True)
class Laboratory:
    """What was measured, by stage, and what the budget still allows.

    A candidate that failed once is out: nobody should be told to use it. The baseline, which is used already,
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
    durations_s: dict[str, list[float]] = field(default_factory=dict)
    is_ending: bool = False

    def __post_init__(self) -> None:
        recent = self.results[self.earlier :]
        self.spent_s = sum(one.duration_s for one in recent)
        self.is_ending = any(one.launch >= FINAL_STAGE * MOST_LAUNCHES for one in recent)
        # What went wrong by chance in an earlier run is tried again; one that a signal ended says nothing.
        fleeting = [one for one in self.results[: self.earlier] if one.status in ("failed", "hang")]
        self.results = [
            one
            for one in self.results
            if one not in fleeting and not str(one.reason).startswith("interrupted by")
        ]
        for one in self.results:
            self.durations_s.setdefault(one.trial_id, []).append(one.duration_s)
            if one.status != "ok":
                self.failed.setdefault(one.trial_id, f"{one.status}: {one.reason}")
        if not self._baseline_is_lost():
            self.failed.pop(self.baseline, None)

    def _baseline_is_lost(self) -> bool:
        """Whether the campaign gives up on it: one failure by chance is none."""
        bad = [one.status for one in self.results if one.trial_id == self.baseline and one.status != "ok"]
        return len(bad) > 1 or any(status in ("oom", "invalid") for status in bad)

    def measured(
        self,
        trials: Iterable[Trial],
        count: int,
        stage: int,
        share: float | None = None,
        reserve_s: float = 0.0,
    ) -> dict[str, Configuration]:
        """`count` launches of each trial that can be run, made in turns; by trial id.

        With a share of the budget given, launches that would not fit into it are not asked for.
        """
        wanted = [trial for trial in trials if trial.trial_id not in self.failed]
        there = {result.key for result in self.results}
        first = stage * MOST_LAUNCHES + (self._block(wanted, count, stage, there) if stage else 0)
        missing: list[tuple[Trial, int]] = []
        for launch in range(first, first + count):
            turn = [trial for trial in wanted if (trial.trial_id, launch) not in there]
            random.Random(f"{self.seed}/{launch}").shuffle(turn)
            missing += [(trial, launch) for trial in turn]
        if missing and share is not None:
            # Once the end has begun, going back would change what is being confirmed.
            gone_by = stage < FINAL_STAGE and self.is_ending
            if gone_by or not self._fits([one for one, _ in missing], share, reserve_s):
                raise NoTime
        if missing:
            raise Needs(tuple(missing))
        # Later launches of the stage do not count: reading again must decide as it did the first time.
        of_stage = [one for one in self.results if first <= one.launch < first + count]
        ids = {trial.trial_id for trial in wanted}
        return {one.trial.trial_id: one for one in configurations(of_stage) if one.trial.trial_id in ids}

    def _block(self, wanted: Sequence[Trial], count: int, stage: int, there: set[tuple[str, int]]) -> int:
        """The first launch number, from the stage's own, of launches made in turns.

        One trial may have been launched here beside another one, in another hour: then all begin anew.
        """
        last = (MOST_LAUNCHES // count - 1) * count
        for begin in range(0, last, count):
            numbers = range(stage * MOST_LAUNCHES + begin, stage * MOST_LAUNCHES + begin + count)
            made = [sum((trial.trial_id, number) in there for number in numbers) for trial in wanted]
            if not made or max(made) - min(made) <= 1:
                return begin
        return max(0, last)

    def rounds(self, trials: Iterable[Trial], stage: int) -> int:
        """How many launches of a stage every trial that can be run has."""
        there = {result.key for result in self.results}
        ids = [trial.trial_id for trial in trials if trial.trial_id not in self.failed]
        first = stage * MOST_LAUNCHES
        return next(n for n in range(MOST_LAUNCHES) if not all((one, first + n) in there for one in ids))

    def _fits(self, trials: Sequence[Trial], share: float, reserve_s: float) -> bool:
        if self.budget_s is None:
            return True
        asked_s = sum(self.expected_s(trial) for trial in trials)
        return self.spent_s + asked_s + reserve_s <= share * self.budget_s

    def expected_s(self, trial: Trial) -> float:
        """How long a launch will take: as the last one of its kind did."""
        seen = self.durations_s.get(trial.trial_id)
        slow = self.is_slow(trial)
        if seen:
            return seen[-1] * (_AGAIN if slow and len(seen) == 1 else 1.0)
        return self._expected_first_s(slow)

    def expected_again_s(self, trial: Trial) -> float:
        """How long a launch will take once there was one."""
        if trial.trial_id in self.durations_s:
            return self.expected_s(trial)
        slow = self.is_slow(trial)
        return self._expected_first_s(slow) * (_AGAIN if slow else 1.0)

    def _expected_first_s(self, slow: bool) -> float:
        """As long as others of its kind did at first."""
        alike = [
            durations[0]
            for one, durations in self._by_trial()
            if self.is_slow(one) == slow and one.trial_id not in self.failed
        ]
        if not alike:
            return _SLOW_START_S if slow else 0.0
        return statistics.median(alike)

    def _by_trial(self) -> list[tuple[Trial, list[float]]]:
        trials = {one.trial_id: Trial(settings=one.settings) for one in self.results}
        return [(trial, self.durations_s[trial_id]) for trial_id, trial in trials.items()]


def singles(
    laboratory: Laboratory,
    baseline: Trial,
    candidates: Sequence[Trial],
    launches: int,
    threshold: float,
    share: float | None = None,
    reserve_s: float = 0.0,
) -> tuple[tuple[Comparison, ...], frozenset[str]]:
    """Every candidate against the baseline, and which were dropped early because they were clearly worse.

    Dropping saves launches and claims nothing: on a noisy machine two slow launches prove little.
    """
    first = laboratory.measured([baseline, *candidates], min(SCREENING, launches), 0, share, reserve_s)
    if baseline.trial_id not in first:
        return (), frozenset()
    dropped = frozenset(
        one.trial.trial_id for one in first.values() if _clearly_worse(one, first[baseline.trial_id])
    )
    kept = [trial for trial in candidates if trial.trial_id not in dropped]
    found = {**first, **laboratory.measured([baseline, *kept], launches, 0, share, reserve_s)}
    judged = [found[trial.trial_id] for trial in candidates if trial.trial_id in found]
    return compare_all(found[baseline.trial_id], judged, threshold), dropped


def explore(
    laboratory: Laboratory,
    baseline: Trial,
    candidates: Sequence[Trial],
    launches: int,
    threshold: float,
    shares: Shares,
) -> tuple[tuple[Comparison, ...], frozenset[str]]:
    """Every candidate alone: in all launches, in two, or in one, as its share of the budget allows."""
    quick = [trial for trial in candidates if not laboratory.is_slow(trial)]
    laboratory.measured([baseline, *quick], 1, 0)
    there = list(quick)
    for trial in candidates:
        if laboratory.is_slow(trial):
            try:
                laboratory.measured([trial], 1, 0, shares.slow)
                there.append(trial)
            except NoTime:
                continue
    # Confirming the best takes as many launches again, of it and of the baseline.
    slowest_s = max((laboratory.expected_again_s(trial) for trial in there), default=0.0)
    reserve_s = launches * (laboratory.expected_again_s(baseline) + slowest_s) if shares.confirming else 0.0
    try:
        return singles(laboratory, baseline, there, launches, threshold, shares.quick, reserve_s)
    except NoTime:
        rounds = laboratory.rounds([baseline, *there], 0)
        found = laboratory.measured([baseline, *there], rounds, 0)
    if baseline.trial_id not in found:
        return (), frozenset()
    judged = [found[trial.trial_id] for trial in there if trial.trial_id in found]
    return compare_all(found[baseline.trial_id], judged, threshold), frozenset()


def _clearly_worse(one: Configuration, baseline: Configuration) -> bool:
    return max(one.log_rates) < min(baseline.log_rates) - _CLEARLY


Build = Callable[[frozenset[str]], Trial | None]  # the trial with these levers; None where it cannot be run


@dataclass(frozen=True, slots=True, kw_only=True)
class Combining:
    """Adds levers to the best one while each is measured to help, then takes out what no longer does."""

    laboratory: Laboratory
    build: Build
    confirmations: int  # launches of the winner and of the baseline that the end will need

    def search(self, best: str, others: Sequence[str]) -> tuple[frozenset[str], tuple[Attempt, ...]]:
        """The levers that help together, and every step on the way."""
        kept = frozenset((best,))
        attempts: list[Attempt] = []
        for place, lever in enumerate(others):
            found = self._attempt(lever, kept | {lever}, kept, 1 + place, adds=True)
            attempts += found
            if found and found[0].kept:
                kept |= {lever}
        all_added = kept
        order = [best, *(one.text for one in attempts if one.kept)]
        for place, lever in enumerate(order):
            # The last one added was measured with all the others just now, unless one of them went since.
            if len(kept) > 1 and not (lever == order[-1] and kept == all_added):
                found = self._attempt(lever, kept, kept - {lever}, _FIRST_REMOVAL + place, adds=False)
                attempts += found
                if found and not found[0].kept:
                    kept -= {lever}
        return kept, tuple(attempts)

    def _attempt(
        self, lever: str, wider: frozenset[str], narrower: frozenset[str], stage: int, *, adds: bool
    ) -> list[Attempt]:
        """What a lever gives, as a list of one; empty where either configuration cannot be run."""
        more, less = self.build(wider), self.build(narrower)
        if more is None or less is None or more.trial_id == less.trial_id:
            return []
        try:
            ratios, differs = self._ratios(more, less, stage)
        except NoTime:  # what was measured to help stays, what was not seen to help does not come in
            return [Attempt(text=lever, adds=adds, speedup=None, kept=not adds)]
        if not ratios:
            return []
        helps = _helps(ratios) if _is_settled(ratios) or len(ratios) == _RETESTS else not adds
        return [
            Attempt(
                text=lever,
                adds=adds,
                speedup=math.exp(statistics.fmean(ratios)),
                kept=helps and not (adds and differs),
                launches=len(ratios),
                loss_differs=differs,
            )
        ]

    def _ratios(self, more: Trial, less: Trial, stage: int) -> tuple[list[float], bool]:
        """Logarithms of how much faster the one was, pair by pair, until settled; whether losses differ."""
        ratios: list[float] = []
        differs = False
        for count in range(1, _RETESTS + 1):
            try:
                found = self.laboratory.measured([more, less], count, stage, 1.0, self._reserve_s(more, less))
            except NoTime:
                if ratios:
                    break
                raise
            if len(found) < 2:
                return [], False
            faster, slower = found[more.trial_id], found[less.trial_id]
            pairs = zip(faster.log_rates, slower.log_rates, strict=True)
            ratios = [left - right for left, right in pairs]
            differs = loss_of(slower, faster)[1]
            if _is_settled(ratios):
                break
        return ratios, differs

    def _reserve_s(self, *trials: Trial) -> float:
        """What confirming the winner at the end will take."""
        again = max(self.laboratory.expected_again_s(trial) for trial in trials)
        known = self.laboratory.durations_s.get(self.laboratory.baseline, [0.0])
        return self.confirmations * (known[-1] + again)


def _is_settled(ratios: list[float]) -> bool:
    if len(ratios) == 1:
        return abs(ratios[0]) > _OBVIOUS
    return len({ratio > _WORTH_KEEPING for ratio in ratios}) == 1


def _helps(ratios: list[float]) -> bool:
    """Whether pairs of launches speak for a lever: all of them, or their mean by more than its error."""
    if min(ratios) > _WORTH_KEEPING:
        return True
    if len(ratios) < _RETESTS:
        return False
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    return statistics.fmean(ratios) - error > _WORTH_KEEPING


def scaling_of(
    laboratory: Laboratory, pairs: Mapping[str, tuple[Trial, Trial]], launches: int
) -> dict[str, Estimate]:
    """How many times one rank's speed all of them reach, by name; `pairs` holds (all ranks, one).

    As many launches as the budget has left room for.
    """
    trials = {trial.trial_id: trial for pair in pairs.values() for trial in pair}
    found: dict[str, Configuration] = {}
    for count in range(1, launches + 1):
        try:
            found = laboratory.measured(trials.values(), count, SCALING_STAGE, 1.0)
        except NoTime:
            break
    return {
        name: ratio_of_logs(found[every.trial_id].log_rates, found[one.trial_id].log_rates)
        for name, (every, one) in pairs.items()
        if {every.trial_id, one.trial_id} <= set(found)
    }


def confirmed(
    laboratory: Laboratory, baseline: Trial, winner: Trial, launches: int, threshold: float
) -> Comparison | None:
    """The winner against the baseline in new launches: those that chose it flatter it."""
    found = laboratory.measured([baseline, winner], launches, FINAL_STAGE)
    if len(found) < 2:
        return None
    (comparison,) = compare_all(found[baseline.trial_id], [found[winner.trial_id]], threshold)
    return comparison
