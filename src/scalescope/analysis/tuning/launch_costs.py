"""Launch costs: how long the next launches of a search will take, learnt from those that were made.

What is compiled takes long once and less when it is launched again, because compilers keep what they made.
Both are learnt apart from what every launch takes.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from scalescope.analysis.tuning.tuned_launches import BASELINE, Combination, TunedLaunch, TunedLaunches

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
