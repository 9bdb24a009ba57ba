"""The search of `tune`: what to launch next, decided from the results alone, so that it can be resumed.

It is written as if everything were measured already. What is not raises `Needs`, is launched, and the search
is read again from its beginning.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.statistics import ratio_of_logs
from scalescope.analysis.tuning import Comparison, compare_all
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result

SCREENING = 2  # launches of everything, before what is clearly worse is dropped
_CLEARLY = 0.15  # slower in every launch by this much
MOST_LAUNCHES = 100  # launch numbers of one stage; each stage measures anew what it compares
_WORTH_KEEPING = 1.01
_RETESTS = 3


class Needs(Exception):
    """Launches without which the search cannot go on."""

    def __init__(self, launches: tuple[tuple[Trial, int], ...]) -> None:
        super().__init__(len(launches))
        self.launches = launches


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One step of combining: a configuration with a lever more or less, and whether that was kept."""

    text: str
    adds: bool
    speedup: float
    kept: bool


@dataclass(slots=True, kw_only=True)
class Laboratory:
    """What was measured, by stage.

    A candidate that failed once is out: nobody should be told to use it. The baseline, which is used already,
    is out only where none of its launches worked.
    """

    results: Sequence[Result]
    seed: int
    baseline: str = ""  # its trial id
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A launch that a signal ended says nothing about its trial.
        self.results = [one for one in self.results if not str(one.reason).startswith("interrupted by")]
        for one in self.results:
            if one.status != "ok":
                self.failed.setdefault(one.trial_id, f"{one.status}: {one.reason}")
        if any(one.trial_id == self.baseline and one.status == "ok" for one in self.results):
            self.failed.pop(self.baseline, None)

    def measured(self, trials: Iterable[Trial], count: int, stage: int) -> dict[str, Configuration]:
        """`count` launches of each trial that can be run, made in turns; by trial id."""
        wanted = [trial for trial in trials if trial.trial_id not in self.failed]
        first = stage * MOST_LAUNCHES
        there = {result.key for result in self.results}
        missing: list[tuple[Trial, int]] = []
        for launch in range(first, first + count):
            turn = [trial for trial in wanted if (trial.trial_id, launch) not in there]
            random.Random(f"{self.seed}/{launch}").shuffle(turn)
            missing += [(trial, launch) for trial in turn]
        if missing:
            raise Needs(tuple(missing))
        # Later launches of the stage do not count: reading again must decide as it did the first time.
        of_stage = [one for one in self.results if first <= one.launch < first + count]
        ids = {trial.trial_id for trial in wanted}
        return {one.trial.trial_id: one for one in configurations(of_stage) if one.trial.trial_id in ids}


def singles(
    laboratory: Laboratory, baseline: Trial, candidates: Sequence[Trial], launches: int, threshold: float
) -> tuple[tuple[Comparison, ...], frozenset[str]]:
    """Every candidate against the baseline, and which were dropped early because they were clearly worse.

    Dropping saves launches and claims nothing: on a noisy machine two slow launches prove little.
    """
    first = laboratory.measured([baseline, *candidates], min(SCREENING, launches), 0)
    if baseline.trial_id not in first:
        return (), frozenset()
    dropped = frozenset(
        one.trial.trial_id for one in first.values() if _clearly_worse(one, first[baseline.trial_id])
    )
    kept = [trial for trial in candidates if trial.trial_id not in dropped]
    found = {**first, **laboratory.measured([baseline, *kept], launches, 0)}
    judged = [found[trial.trial_id] for trial in candidates if trial.trial_id in found]
    return compare_all(found[baseline.trial_id], judged, threshold), dropped


def _clearly_worse(one: Configuration, baseline: Configuration) -> bool:
    return max(one.log_rates) < min(baseline.log_rates) - _CLEARLY


Build = Callable[[frozenset[str]], Trial | None]  # the trial with these levers; None where it cannot be run


def combine(
    laboratory: Laboratory, best: str, others: Sequence[str], build: Build
) -> tuple[frozenset[str], tuple[Attempt, ...]]:
    """Add levers one by one while each is measured to help, then take out each that no longer does."""
    kept = frozenset((best,))
    attempts: list[Attempt] = []
    stage = 1
    for lever in others:
        gain = _gain(laboratory, build(kept | {lever}), build(kept), stage)
        stage += 1
        if gain is not None:
            keeps = gain > _WORTH_KEEPING
            attempts.append(Attempt(text=lever, adds=True, speedup=gain, kept=keeps))
            kept = kept | {lever} if keeps else kept
    for lever in sorted(kept):
        if len(kept) == 1:  # it was measured against the baseline already, in more launches
            break
        gain = _gain(laboratory, build(kept), build(kept - {lever}), stage)
        stage += 1
        if gain is not None:
            keeps = gain > _WORTH_KEEPING
            attempts.append(Attempt(text=lever, adds=False, speedup=gain, kept=keeps))
            kept = kept if keeps else kept - {lever}
    return kept, tuple(attempts)


def _gain(laboratory: Laboratory, wider: Trial | None, narrower: Trial | None, stage: int) -> float | None:
    """How much faster the one is than the other; None where either cannot be run."""
    if wider is None or narrower is None or wider.trial_id == narrower.trial_id:
        return None
    found = laboratory.measured([wider, narrower], _RETESTS, stage)
    if len(found) < 2:
        return None
    return ratio_of_logs(found[wider.trial_id].log_rates, found[narrower.trial_id].log_rates).value


FINAL_STAGE = 90


def confirmed(
    laboratory: Laboratory, baseline: Trial, winner: Trial, launches: int, threshold: float
) -> Comparison | None:
    """The winner against the baseline in new launches: those that chose it flatter it."""
    found = laboratory.measured([baseline, winner], launches, FINAL_STAGE)
    if len(found) < 2:
        return None
    (comparison,) = compare_all(found[baseline.trial_id], [found[winner.trial_id]], threshold)
    return comparison
