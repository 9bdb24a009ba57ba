"""The search of `tune`: what to launch next, decided from the results alone, so that it can be resumed.

It is written as if everything were measured already. What is missing raises `LaunchesNeeded`, is launched,
and the search is read again from its beginning.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.statistics import Estimate, ratio_of_logs
from scalescope.analysis.tuning.ledger import ALONE, CONFIRM, SCALING, OverBudget, SearchLedger
from scalescope.analysis.tuning.lever_comparison import LeverComparison, compare_all, loss_of
from scalescope.experiment.trial import Trial
from scalescope.results.result import Stage


class Shares(NamedTuple):
    """Parts of the budget that levers looked at alone may take."""

    quick: float
    slow: float
    confirming: bool  # whether what confirming takes is kept apart besides


SCREENING = 2  # launches of everything, before what is clearly worse is dropped
_CLEARLY = 0.15  # slower in every launch by this much
_WORTH_KEEPING = math.log(1.01)
_RETESTS = 3
_OBVIOUS = math.log(1.25)  # one pair of launches settles a difference like that
# Shares of the budget that looking at levers one by one may take: confirming the best needs the rest, and
# combining them more of it. What starts slowly is needed on top of the best then, rather than alone.
LEVERS_ALONE = Shares(quick=1.0, slow=0.65, confirming=True)
BEFORE_COMBINING = Shares(quick=0.3, slow=0.15, confirming=False)


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


def singles(
    ledger: SearchLedger,
    baseline: Trial,
    candidates: Sequence[Trial],
    launches: int,
    threshold: float,
    share: float | None = None,
    reserve_s: float = 0.0,
) -> tuple[tuple[LeverComparison, ...], frozenset[str]]:
    """Every candidate against the baseline, and which were dropped early because they were clearly worse.

    Dropping saves launches and claims nothing: on a noisy machine two slow launches prove little.
    """
    first = ledger.measured([baseline, *candidates], min(SCREENING, launches), ALONE, share, reserve_s)
    if baseline.trial_id not in first:
        return (), frozenset()
    dropped = frozenset(
        configuration.trial.trial_id
        for configuration in first.values()
        if _clearly_worse(configuration, first[baseline.trial_id])
    )
    kept = [trial for trial in candidates if trial.trial_id not in dropped]
    measured = {**first, **ledger.measured([baseline, *kept], launches, ALONE, share, reserve_s)}
    judged = [measured[trial.trial_id] for trial in candidates if trial.trial_id in measured]
    return compare_all(measured[baseline.trial_id], judged, threshold), dropped


def explore(
    ledger: SearchLedger,
    baseline: Trial,
    candidates: Sequence[Trial],
    launches: int,
    threshold: float,
    shares: Shares,
) -> tuple[tuple[LeverComparison, ...], frozenset[str]]:
    """Every candidate alone: in all launches, in two, or in one, as its share of the budget allows."""
    quick = [trial for trial in candidates if not ledger.is_slow(trial)]
    ledger.measured([baseline, *quick], 1, ALONE)
    there = list(quick)
    for trial in candidates:
        if ledger.is_slow(trial):
            try:
                ledger.measured([trial], 1, ALONE, shares.slow)
                there.append(trial)
            except OverBudget:
                continue
    # Confirming the best takes as many launches again, of it and of the baseline.
    slowest_s = max((ledger.expected_again_s(trial) for trial in there), default=0.0)
    reserve_s = launches * (ledger.expected_again_s(baseline) + slowest_s) if shares.confirming else 0.0
    try:
        return singles(ledger, baseline, there, launches, threshold, shares.quick, reserve_s)
    except OverBudget:
        rounds = ledger.rounds([baseline, *there], ALONE)
        measured = ledger.measured([baseline, *there], rounds, ALONE)
    if baseline.trial_id not in measured:
        return (), frozenset()
    judged = [measured[trial.trial_id] for trial in there if trial.trial_id in measured]
    return compare_all(measured[baseline.trial_id], judged, threshold), frozenset()


def _clearly_worse(configuration: Configuration, baseline: Configuration) -> bool:
    return max(configuration.log_rates) < min(baseline.log_rates) - _CLEARLY


Build = Callable[[frozenset[str]], Trial | None]  # the trial with these levers; None where it cannot be run


@dataclass(frozen=True, slots=True, kw_only=True)
class Combining:
    """Adds levers to the best one while each is measured to help, then takes out what no longer does."""

    ledger: SearchLedger
    build: Build
    confirmations: int  # launches of the winner and of the baseline that the end will need

    def search(self, best: str, others: Sequence[str]) -> tuple[frozenset[str], tuple[Attempt, ...]]:
        """The levers that help together, and every step on the way."""
        kept = frozenset((best,))
        attempts: list[Attempt] = []
        for number, lever in enumerate(others):
            outcome = self._attempt(lever, kept | {lever}, kept, Stage("add", number), adds=True)
            attempts += outcome
            if outcome and outcome[0].kept:
                kept |= {lever}
        all_added = kept
        order = [best, *(attempt.text for attempt in attempts if attempt.kept)]
        for number, lever in enumerate(order):
            # The last one added was measured with all the others just now, unless one of them went since.
            if len(kept) > 1 and not (lever == order[-1] and kept == all_added):
                stage = Stage("remove", number)
                outcome = self._attempt(lever, kept, kept - {lever}, stage, adds=False)
                attempts += outcome
                if outcome and not outcome[0].kept:
                    kept -= {lever}
        return kept, tuple(attempts)

    def _attempt(
        self, lever: str, wider: frozenset[str], narrower: frozenset[str], stage: Stage, *, adds: bool
    ) -> list[Attempt]:
        """What a lever gives, as a list of one; empty where either configuration cannot be run."""
        more, less = self.build(wider), self.build(narrower)
        if more is None or less is None or more.trial_id == less.trial_id:
            return []
        try:
            ratios, differs = self._ratios(more, less, stage)
        except OverBudget:  # what was measured to help stays, what was not seen to help does not come in
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

    def _ratios(self, more: Trial, less: Trial, stage: Stage) -> tuple[list[float], bool]:
        """Logarithms of how much faster the one was, pair by pair, until settled; whether losses differ."""
        ratios: list[float] = []
        differs = False
        for count in range(1, _RETESTS + 1):
            try:
                measured = self.ledger.measured([more, less], count, stage, 1.0, self._reserve_s(more, less))
            except OverBudget:
                if ratios:
                    break
                raise
            if len(measured) < 2:
                return [], False
            faster, slower = measured[more.trial_id], measured[less.trial_id]
            pairs = zip(faster.log_rates, slower.log_rates, strict=True)
            ratios = [left - right for left, right in pairs]
            differs = loss_of(slower, faster)[1]
            if _is_settled(ratios):
                break
        return ratios, differs

    def _reserve_s(self, *trials: Trial) -> float:
        """What confirming the winner at the end will take."""
        again = max(self.ledger.expected_again_s(trial) for trial in trials)
        known = self.ledger.durations.of(self.ledger.baseline) or [0.0]
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
    ledger: SearchLedger, pairs: Mapping[str, tuple[Trial, Trial]], launches: int
) -> dict[str, Estimate]:
    """How many times one rank's speed all of them reach, by name; `pairs` holds (all ranks, one).

    As many launches as the budget has left room for.
    """
    trials = {trial.trial_id: trial for pair in pairs.values() for trial in pair}
    measured: dict[str, Configuration] = {}
    for count in range(1, launches + 1):
        try:
            measured = ledger.measured(trials.values(), count, SCALING, 1.0)
        except OverBudget:
            break
    return {
        name: ratio_of_logs(measured[every.trial_id].log_rates, measured[single.trial_id].log_rates)
        for name, (every, single) in pairs.items()
        if {every.trial_id, single.trial_id} <= set(measured)
    }


def confirmed(
    ledger: SearchLedger, baseline: Trial, winner: Trial, launches: int, threshold: float
) -> LeverComparison | None:
    """The winner against the baseline in new launches: those that chose it flatter it."""
    measured = ledger.measured([baseline, winner], launches, CONFIRM)
    if len(measured) < 2:
        return None
    (comparison,) = compare_all(measured[baseline.trial_id], [measured[winner.trial_id]], threshold)
    return comparison
