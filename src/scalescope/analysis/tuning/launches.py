"""What launches of a search showed, and what another one costs."""

import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from scalescope.analysis.rounds import ENOUGH_QUIET, Cell
from scalescope.analysis.statistics import Contrast
from scalescope.results.result import Stage

# ---- TunedLaunches: what the launches of a search gave, and how sure differences between them are


Combination = frozenset[str]  # of levers by name; empty: the settings as they are
BASELINE: Combination = frozenset()
# Of the logarithm of a launch's speed: GPUs keep to their clock better than processors that others use too.
_USUAL_DEVIATIONS = {"cpu": 0.02, "cuda": 0.01}
_LOADED_DEVIATION = 0.1  # where other processes use the machine
_USUAL_FREEDOM = 2.0  # as if this many more launches had shown it
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


@dataclass
class TunedLaunches:
    """The launches of a search so far, in their order. Where a set has launches of its own, its tries in the
    starts of others do not count."""

    launches: Sequence[TunedLaunch]
    usual_deviation: float = _USUAL_DEVIATIONS["cpu"]
    _rates: dict[Combination, list[float]] = field(init=False, default_factory=dict)
    _counted: list[tuple[int, TunedLaunch]] = field(init=False, default_factory=list)  # with their places

    def __post_init__(self) -> None:
        measured = [
            (place, launch) for place, launch in enumerate(self.launches) if launch.log_rate is not None
        ]
        launched = {launch.levers for _, launch in measured if not launch.is_within}
        self._counted = [
            (place, launch)
            for place, launch in measured
            if not launch.is_within or launch.levers not in launched
        ]
        for levers in dict.fromkeys(launch.levers for _, launch in measured):
            members = [launch for _, launch in self._counted if launch.levers == levers]
            quiet = [launch for launch in members if launch.is_quiet] or members
            self._rates[levers] = [launch.log_rate or 0.0 for launch in quiet]

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
        """Successful launches, disturbed or not."""
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
        """The variance of a launch, and its degrees of freedom; a try in another's start is none."""
        squares, freedom = _USUAL_FREEDOM * self.usual_deviation**2, _USUAL_FREEDOM
        for rates in self.fresh._rates.values():
            if len(rates) > 1:
                squares += (len(rates) - 1) * statistics.variance(rates)
                freedom += len(rates) - 1
        return squares / freedom, freedom

    @cached_property
    def race(self) -> "TunedLaunches":
        """New launches, made in turns."""
        return self.of_stages(("confirm",))

    @cached_property
    def fresh(self) -> "TunedLaunches":
        """Launches of their own, without what was tried in the start of another."""
        own = [launch for launch in self.launches if not launch.is_within]
        return TunedLaunches(own, self.usual_deviation)

    def difference(
        self, levers: Combination, base: Combination, *, with_tries: bool = True
    ) -> SpeedDifference | None:
        """How much faster one is than the other: by the race where both ran in it, or else launches of their
        own, or else tries; None where either was not measured, or under another load."""
        for among in (self.race, self.fresh, *([self] if with_tries else [])):
            if among.count(levers) and among.count(base):
                known = self._difference(levers, base, among)
                if known is not None:
                    return known
        return None

    def _difference(
        self, levers: Combination, base: Combination, counted: "TunedLaunches"
    ) -> SpeedDifference | None:
        """The same by some of the launches; all of them tell the spread."""
        pairs = counted.pairs(levers, base)
        if pairs:
            squares, freedom = self._pair_spread
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
        free = [place for place, launch in self._counted if launch.levers == base]
        pairs = []
        for place, launch in self._counted if levers != base else ():
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
            [launch for _, launch in self._counted if launch.levers == wanted] for wanted in (levers, base)
        )
        return any(launch.is_alike(other) for launch in left for other in right)

    @cached_property
    def _pair_spread(self) -> tuple[float, float]:
        """The sum of squares of differences of pairs, and its degrees of freedom: how pairs differ among each
        other, and how a launch differs from the one before of the same combination. Tries are left out."""
        freedom = _USUAL_FREEDOM_OF_PAIRS  # other load makes rounds differ, and hardly pairs of one round
        squares = 2.0 * freedom * min(self.usual_deviation, _USUAL_DEVIATIONS["cpu"]) ** 2
        for levers in self.fresh.combinations:
            differences = self.fresh.pairs(levers, BASELINE) if levers else []
            if len(differences) > 1:
                squares += (len(differences) - 1) * statistics.variance(differences)
                freedom += len(differences) - 1
            for before, after in itertools.pairwise(self.fresh._rates[levers]):
                squares += (after - before) ** 2
                freedom += 1
        return squares, freedom


def usual_deviation(device: str, *, loaded: bool = False) -> float:
    """What launches on a device usually differ by, before there are any; more on a loaded machine."""
    return _LOADED_DEVIATION if loaded else _USUAL_DEVIATIONS[device]


# ---- Launch costs: how long the next launches of a search will take, learnt from those that were made


Program = Callable[
    [Combination], Combination | None
]  # the levers that decide what is compiled; None: nothing
_FIRST_S = 40.0  # compiling takes, as long as nothing was compiled
_AGAIN = 0.3  # of that, where it was compiled before
_MARGIN = 1.1
_UNKNOWN_S = 10.0  # a launch, before any was made
_TRY_S = 4.0  # trying a combination in the start of another
_LEAST_S = 0.1
_CUT = 2.0  # times as long as it was given, where a launch was cut short


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCosts:
    """Durations of launches by what they had in common with the next one."""

    measured: TunedLaunches
    program: Program = lambda levers: None

    def of(self, levers: Combination, base: Combination = BASELINE) -> float:
        """What the next launch of a combination takes; `base` is what it is built on."""
        return _MARGIN * max(self._expected(levers, base), self._cut_s(levers), _LEAST_S)

    def within(self, levers: Combination) -> float:
        """What trying a combination takes in the start of another."""
        compiled = self.program(levers) is not None and not self._is_compiled(levers)
        return _TRY_S + (self._first_s() if compiled else 0.0)

    def _cut_s(self, levers: Combination) -> float:
        """What a lever needs at least that had too little time, wherever it was tried."""
        finished = {launch.levers for launch in self._finished()}
        cut = [launch for launch in self.measured.launches if launch.cut_short]
        alike = [launch for launch in cut if launch.levers not in finished and _needs_as_much(levers, launch)]
        return _CUT * max((launch.duration_s for launch in alike), default=0.0)

    def _expected(self, levers: Combination, base: Combination) -> float:
        same = [launch for launch in self._finished() if launch.levers == levers and not launch.is_within]
        if len(same) > 1 or (same and self.program(levers) is None):
            return same[-1].duration_s
        plain_s = self._plain_s(base)
        if self.program(levers) is None:
            return plain_s
        return plain_s + (self._again_s() if self._is_compiled(levers) else self._first_s())

    def _finished(self) -> list[TunedLaunch]:
        return [launch for launch in self.measured.launches if launch.log_rate is not None]

    def _plain_s(self, base: Combination) -> float:
        """A launch that compiles nothing: as the base did, or as most."""
        own = [launch for launch in self._finished() if not launch.is_within]
        plain = [launch for launch in own if self.program(launch.levers) is None]
        of_base = [launch.duration_s for launch in plain if launch.levers == base]
        if of_base:
            return of_base[-1]
        return statistics.median(launch.duration_s for launch in plain) if plain else _UNKNOWN_S

    def _is_compiled(self, levers: Combination) -> bool:
        return self.program(levers) in {self.program(launch.levers) for launch in self._finished()}

    def _compiled(self) -> tuple[list[float], list[float]]:
        """What compiling added to launches: where it was new, and where it had been made before."""
        first: list[float] = []
        again: list[float] = []
        known: set[Combination] = set()
        plain_s = self._plain_s(BASELINE)
        for launch in self.measured.launches:
            program = self.program(launch.levers)
            if program is None:
                continue
            extra_s = max(0.0, launch.duration_s - (_TRY_S if launch.is_within else plain_s))
            if program not in known:
                first.append(extra_s)
            elif launch.log_rate is not None:
                again.append(extra_s)
            known.add(program)
        return first, again

    def _first_s(self) -> float:
        first, _ = self._compiled()
        return statistics.fmean(first) if first else _FIRST_S

    def _again_s(self) -> float:
        _, again = self._compiled()
        return statistics.median(again) if again else _AGAIN * self._first_s()


def _needs_as_much(levers: Combination, cut: TunedLaunch) -> bool:
    """Whether a combination has what was new in a launch that had too little time."""
    new = cut.levers - cut.base
    return levers == cut.levers or bool(new and new <= levers)
