"""TunedLaunches: what the launches of a search gave, and how sure differences between them are.

Launches that were made in turns are compared in pairs, those under alike load alone (`rounds.py`). Few are
made of each combination, so their spread is pooled: all pairs, or else all launches, say together how much
they differ, and a usual spread counts as a few launches more. Early on that keeps two launches that agree by
chance from proving anything.
"""

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from scalescope.analysis.rounds import ENOUGH_QUIET, Cell
from scalescope.analysis.statistics import Contrast
from scalescope.results.result import Stage

Combination = frozenset[str]  # of levers by name; empty: the settings as they are
BASELINE: Combination = frozenset()
# Of the logarithm of a launch's speed: GPUs keep to their clock better than processors that others use too.
_USUAL_DEVIATIONS = {"cpu": 0.02, "cuda": 0.01}
_LOADED_DEVIATION = 0.1  # where other processes use the machine
_USUAL_FREEDOM = 2.0  # as if so many launches more had shown it
_USUAL_FREEDOM_OF_PAIRS = 2.0
_NEAR = 6  # launches apart, at most, in a pair


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedLaunch:
    """A launch that ended: which levers it had, how fast it was, how long it took."""

    levers: Combination
    log_rate: float | None  # of samples per second; None where it failed or was cut short
    duration_s: float
    stage: Stage
    base: Combination = BASELINE  # what a lever was added to
    refused: bool = False  # its loss differs
    cut_short: bool = False  # ended because its time was over: with more time it may work
    is_within: bool = False  # tried in the start of the launch before it
    restarted: bool = False  # a beginning of an epoch took part of its time
    cell: Cell | None = None  # what others used meanwhile; None is unknown

    @property
    def is_quiet(self) -> bool:
        """Whether nothing disturbed it, as far as is known."""
        return not self.restarted and (self.cell is None or self.cell.is_quiet)

    def is_alike(self, other: "TunedLaunch") -> bool:
        """Whether others loaded the machine alike during both."""
        return self.cell is None or other.cell is None or self.cell.is_alike(other.cell)


@dataclass(frozen=True, slots=True)
class SpeedDifference:
    """How much faster one combination is than another: the logarithm, and its standard error."""

    contrast: Contrast
    launches: int  # of the side that has fewer

    @property
    def value(self) -> float:
        return self.contrast.difference

    def low(self, alpha: float) -> float:
        """What the difference exceeds, but for a probability of `alpha`."""
        return self.value - self.contrast.half_width(1.0 - alpha)

    def high(self, alpha: float) -> float:
        """What the difference does not exceed, but for a probability of `alpha`."""
        return self.value + self.contrast.half_width(1.0 - alpha)


@dataclass(slots=True)
class TunedLaunches:
    """The launches of a search so far, in their order."""

    launches: Sequence[TunedLaunch]
    usual_deviation: float = _USUAL_DEVIATIONS["cpu"]
    _rates: dict[Combination, list[float]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        measured = [launch for launch in self.launches if launch.log_rate is not None]
        for levers in dict.fromkeys(launch.levers for launch in measured):
            members = [launch for launch in measured if launch.levers == levers]
            counted = [launch for launch in members if launch.is_quiet] or members
            self._rates[levers] = [launch.log_rate or 0.0 for launch in counted]

    @property
    def combinations(self) -> tuple[Combination, ...]:
        """All that were measured, in the order of their first launches."""
        return tuple(self._rates)

    @property
    def failed(self) -> frozenset[Combination]:
        """What cannot be recommended: it failed, or trains to another loss."""
        unmeasured = {
            launch.levers for launch in self.launches if launch.log_rate is None and not launch.cut_short
        }
        refused = {launch.levers for launch in self.launches if launch.refused}
        return frozenset((unmeasured - {BASELINE}) | refused)

    def count(self, levers: Combination) -> int:
        return len(self._rates.get(levers, ()))

    def made(self, levers: Combination) -> int:
        """Launches that ended well, disturbed or not."""
        return sum(launch.levers == levers and launch.log_rate is not None for launch in self.launches)

    def mean(self, levers: Combination) -> float:
        return statistics.fmean(self._rates[levers])

    def of_stages(self, kinds: Iterable[str]) -> "TunedLaunches":
        """The launches of some stages alone."""
        wanted = set(kinds)
        return TunedLaunches(
            [launch for launch in self.launches if launch.stage.kind in wanted], self.usual_deviation
        )

    def spread(self) -> tuple[float, float]:
        """The variance of a launch, and its degrees of freedom."""
        squares, freedom = _USUAL_FREEDOM * self.usual_deviation**2, _USUAL_FREEDOM
        for rates in self._rates.values():
            if len(rates) > 1:
                squares += (len(rates) - 1) * statistics.variance(rates)
                freedom += len(rates) - 1
        return squares / freedom, freedom

    def difference(
        self, levers: Combination, base: Combination, among: "TunedLaunches | None" = None
    ) -> SpeedDifference | None:
        """How much faster one is than the other; None where either was not measured, or under another load.

        `among` are the launches to compare, where not all count; all of them tell the spread.
        """
        counted = among or self
        pairs = counted.pairs(levers, base)
        if pairs:
            squares, freedom = self._pair_spread()
            contrast = Contrast(
                difference=statistics.fmean(pairs), variance=squares / freedom / len(pairs), freedom=freedom
            )
            return SpeedDifference(contrast, len(pairs))
        if not counted.were_alike(levers, base):
            return None
        variance, freedom = self.spread()
        more, less = counted.count(levers), counted.count(base)
        contrast = Contrast(
            difference=counted.mean(levers) - counted.mean(base),
            variance=variance * (1.0 / more + 1.0 / less),
            freedom=freedom,
        )
        return SpeedDifference(contrast, min(more, less))

    def pairs(self, levers: Combination, base: Combination) -> list[float]:
        """Differences of launches of both that were made near each other under alike load, each in one pair;
        where enough of them were undisturbed, of these."""
        free = [place for place, launch in self._measured() if launch.levers == base]
        pairs = []
        for place, launch in self._measured() if levers != base else ():
            near = [
                other
                for other in free
                if abs(place - other) <= _NEAR and launch.is_alike(self.launches[other])
            ]
            if launch.levers == levers and near:
                nearest = min(near, key=lambda other: abs(place - other))
                free.remove(nearest)
                pairs.append((launch, self.launches[nearest]))
        quiet = [pair for pair in pairs if all(side.is_quiet for side in pair)]
        if len(quiet) >= min(ENOUGH_QUIET, len(pairs)):
            pairs = quiet
        return [(left.log_rate or 0.0) - (right.log_rate or 0.0) for left, right in pairs]

    def were_alike(self, levers: Combination, base: Combination) -> bool:
        """Whether a launch of each was made under alike load."""
        left, right = (
            [launch for _, launch in self._measured() if launch.levers == wanted] for wanted in (levers, base)
        )
        return any(launch.is_alike(other) for launch in left for other in right)

    def _measured(self) -> list[tuple[int, TunedLaunch]]:
        return [(place, launch) for place, launch in enumerate(self.launches) if launch.log_rate is not None]

    def _pair_spread(self) -> tuple[float, float]:
        """The sum of squares of differences of pairs, and its degrees of freedom: how pairs differ among each
        other, and how a launch differs from the one before of the same combination."""
        freedom = _USUAL_FREEDOM_OF_PAIRS  # other load makes rounds differ, and hardly pairs of one round
        squares = 2.0 * freedom * min(self.usual_deviation, _USUAL_DEVIATIONS["cpu"]) ** 2
        for levers in self.combinations:
            differences = self.pairs(levers, BASELINE) if levers else []
            if len(differences) > 1:
                squares += (len(differences) - 1) * statistics.variance(differences)
                freedom += len(differences) - 1
            for before, after in itertools.pairwise(self._rates[levers]):
                squares += (after - before) ** 2
                freedom += 1
        return squares, freedom


def usual_deviation(device: str, *, loaded: bool = False) -> float:
    """What launches on a device usually differ by, before there are any; more on a loaded machine."""
    return _LOADED_DEVIATION if loaded else _USUAL_DEVIATIONS[device]
