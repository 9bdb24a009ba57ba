"""The search of `tune`: which launch is worth most next, decided from the launches so far.

1. The settings as they are, once.
2. Exploring: the lever that promises most per second is added to the best combination so far, in one launch.
   What is clearly faster becomes the best.
3. Refining: levers that may matter but are not clearly faster get more launches, in turns with the best; the
   most promising first, until each is clearly faster or too small to matter.
4. Confirming: the best, the settings as they are, and the best without each of its levers, in new launches
   made in turns. A lever without a measurable gain is dropped.

Each of them keeps back the time that confirming needs. Nothing is remembered besides the launches: every
launch says what it was made for and what it was built on, so a search goes on where it was interrupted.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalescope.analysis.tuning.confirmation import LEAST_GAIN, LEAST_LAUNCHES, OBVIOUS, Confirmation
from scalescope.analysis.tuning.launch_costs import LaunchCosts, Program
from scalescope.analysis.tuning.step_model import Gain, StepModel
from scalescope.analysis.tuning.tuned_launches import (
    BASELINE,
    Combination,
    SpeedDifference,
    TunedLaunches,
)
from scalescope.results.result import Stage

BASELINE_STAGE, EXPLORE, REFINE, CONFIRM = (
    Stage("baseline"),
    Stage("explore"),
    Stage("refine"),
    Stage("confirm"),
)
_DECIDING = ("baseline", "explore", "refine")  # stages by which the best is chosen
_CLEAR = 1.5  # standard deviations above nothing make a lever part of the best; confirming looks again
_SURPRISE = 3.0  # standard deviations from what is expected: a measurement counts more than that
_OPTIMISM = 1.3  # standard deviations above the mean: what a lever may give
_BOUND_ERROR = 0.025  # of a bound on what a lever gives
_WORTH = 0.002  # the least expected improvement worth a launch
_TOGETHER = math.log(1.1)  # what a lever must promise to be tried together with another
_FEW_LAUNCHES = 15  # a budget of fewer confirms in single pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A setting at another value."""

    name: str
    setting: str
    asked: bool = False  # by name: tried whatever it promises


@dataclass(frozen=True, slots=True, kw_only=True)
class NextLaunch:
    """The next launch: of what, for what, and how long it may take."""

    levers: Combination
    stage: Stage
    base: Combination = BASELINE
    at_most_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSearch:
    """What is searched, and what a search may use."""

    options: Sequence[Option]
    model: StepModel
    can_run: Callable[[Combination], bool] = lambda levers: True
    program: Program = lambda levers: None
    threshold: float = 0.03  # the smallest difference that matters
    most_launches: int = 5  # of a combination, for one purpose
    combine: bool = True

    def next_step(self, measured: TunedLaunches, remaining_s: float | None) -> NextLaunch | None:
        """The next launch; None where the search is over, or no useful launch fits into the time."""
        if not measured.count(BASELINE):
            return NextLaunch(levers=BASELINE, stage=BASELINE_STAGE, at_most_s=remaining_s)
        position = SearchPosition(search=self, measured=measured, remaining_s=remaining_s)
        step = position.explore() or position.refine() or position.confirm()
        if step is not None:
            return step
        unreserved = dataclasses.replace(position, keeps_reserve=False)
        return unreserved.explore() or unreserved.refine() or unreserved.tighten()

    def with_option(self, base: Combination, option: Option) -> Combination:
        """The base with an option, in place of what moves the same setting."""
        others = {other.name for other in self.options if other.setting == option.setting}
        return (base - others) | {option.name}


@dataclass(frozen=True, kw_only=True)
class SearchPosition:
    """A search after some launches."""

    search: TuningSearch
    measured: TunedLaunches
    remaining_s: float | None = None
    keeps_reserve: bool = True  # for confirming

    @functools.cached_property
    def costs(self) -> LaunchCosts:
        return LaunchCosts(measured=self.measured, program=self.search.program)

    # The best so far

    @functools.cached_property
    def deciding(self) -> TunedLaunches:
        """The launches by which the best is chosen."""
        return self.measured.of_stages(_DECIDING)

    @functools.cached_property
    def base(self) -> Combination:
        """What levers were added to last."""
        explored = [launch for launch in self.measured.launches if launch.stage.kind in ("explore", "refine")]
        return explored[-1].base if explored and self.search.combine else BASELINE

    @functools.cached_property
    def best(self) -> Combination:
        """The base, or what is clearly faster than it."""
        base = self.base
        faster = [levers for levers in self.built_on(base) if self._is_clear(levers, base)]
        return max(faster, key=self.deciding.mean, default=base)

    @functools.cached_property
    def _host_shares(self) -> dict[Combination, float | None]:
        return {}

    def built_on(self, base: Combination) -> list[Combination]:
        """What was measured on top of a base and may be recommended; nothing where the base was not."""
        built = dict.fromkeys(
            launch.levers
            for launch in self.measured.launches
            if launch.stage.kind in ("explore", "refine")
            and launch.base == base
            and launch.levers != base
            and launch.log_rate is not None
        )
        return [
            levers
            for levers in built
            if levers not in self.measured.failed and self._difference(levers, base) is not None
        ]

    def _difference(self, levers: Combination, base: Combination) -> SpeedDifference | None:
        return self.measured.difference(levers, base, among=self.deciding)

    def _is_clear(self, levers: Combination, base: Combination) -> bool:
        gain = self._posterior(levers, base)
        return gain.mean > LEAST_GAIN and gain.mean > _CLEAR * gain.deviation

    def _posterior(self, levers: Combination, base: Combination) -> Gain:
        """What levers give on top of a base: as expected of them, and as measured."""
        difference = self._difference(levers, base)
        assert difference is not None
        expected = self.search.model.gain(levers, base, self._host_share(base))
        error, surprise = difference.contrast.deviation, abs(difference.value - expected.mean)
        if surprise > _SURPRISE * math.hypot(expected.deviation, error):  # the facts or the card are wrong
            expected = Gain(expected.mean, surprise)
        return expected.given(difference.value, error)

    # Time

    def _fits(self, cost_s: float, reserve_s: float) -> bool:
        return self.remaining_s is None or cost_s + reserve_s <= self.remaining_s

    def _confirming_s(self, levers: Combination) -> float:
        """What confirming a combination against the baseline takes at least."""
        if not levers or not self.keeps_reserve:
            return 0.0
        pair_s = self.costs.of(BASELINE) + self._again_s(levers)
        return pair_s * self._least_rounds(levers)

    def _least_rounds(self, levers: Combination) -> int:
        """Pairs that confirm a combination: one where the gain is obvious or time is short."""
        known = levers if self.measured.count(levers) else self.base
        if self.measured.mean(known) - self.measured.mean(BASELINE) > OBVIOUS:
            return 1
        if self.remaining_s is None:
            return LEAST_LAUNCHES
        spent_s = sum(launch.duration_s for launch in self.measured.launches)
        total_s = spent_s + self.remaining_s
        return 1 if total_s < _FEW_LAUNCHES * self.costs.of(BASELINE) else LEAST_LAUNCHES

    def _again_s(self, levers: Combination) -> float:
        """A launch of a combination after its first one."""
        if self.measured.count(levers) or self.search.program(levers) is None:
            return self.costs.of(levers, self.base)
        return self.costs.of(levers, self.base) * 0.5

    # Exploring

    def explore(self) -> NextLaunch | None:
        best = self.best if self.search.combine else BASELINE
        ranked = sorted(
            (-self._worth(levers, best) / self.costs.of(levers, best), sorted(levers), levers)
            for levers in self._neighbours(best)
        )
        for rank, _, levers in ranked:
            if rank == 0.0:
                continue
            reserve_s = max(self._confirming_s(levers), self._confirming_s(best))
            if self._fits(self.costs.of(levers, best), reserve_s):
                limit_s = None if self.remaining_s is None else self.remaining_s - self._confirming_s(best)
                return NextLaunch(levers=levers, stage=EXPLORE, base=best, at_most_s=limit_s)
        return None

    def unpromising(self) -> frozenset[str]:
        """Levers of which nothing is expected on top of the best, however much time there is."""
        best = self.best if self.search.combine else BASELINE
        return frozenset(
            option.name
            for option in self.search.options
            if option.name not in best
            and self._expected(self.search.with_option(best, option), best).improvement(LEAST_GAIN) <= _WORTH
        )

    def _neighbours(self, best: Combination) -> set[Combination]:
        """Combinations with one option more; and what is compiled also with another one that is compiled in.

        Compiling takes long, and again for every other precision: the two are better chosen together.
        """
        usable = [option for option in self.search.options if not self._failed(option)]
        single = {
            self.search.with_option(best, option): option for option in usable if option.name not in best
        }
        neighbours = set(single)
        for levers in single if self.search.combine else ():
            program = self.search.program(levers)
            if program is not None and program != self.search.program(best):
                pairs = {self.search.with_option(levers, option) for option in usable}
                neighbours |= {pair for pair in pairs if self._are_better_together(pair, levers)}
        return {
            levers
            for levers in neighbours
            if levers != best
            and not self.deciding.count(levers)
            and levers not in self.measured.failed
            and self.search.can_run(levers)
        }

    def _are_better_together(self, pair: Combination, levers: Combination) -> bool:
        """Whether a lever more changes what is compiled, and is sure to be worth it by its card."""
        if self.search.program(pair) == self.search.program(levers):
            return False
        host = self._host_share(self.base)
        return self.search.model.gain(pair, levers, host).mean > _TOGETHER

    def _worth(self, levers: Combination, best: Combination) -> float:
        """The expected improvement; 0 where it is not worth a launch."""
        worth = self._expected(levers, best).improvement(LEAST_GAIN)
        if worth > _WORTH:
            return worth
        asked = [option for option in self.search.options if option.asked and option.name in levers - best]
        return 1e-9 if len(levers - best) == 1 and any(not self._was_tried(o) for o in asked) else 0.0

    def _host_share(self, base: Combination) -> float | None:
        """The host's share of the base's step, by launches on top of it whose limit was the host."""
        if base not in self._host_shares:
            shares = [
                share
                for levers in self.built_on(base)
                if (difference := self._difference(levers, base)) is not None
                and (share := self.search.model.host_share(levers, base, math.exp(-difference.value)))
            ]
            self._host_shares[base] = min(1.0, statistics.median(shares)) if shares else None
        return self._host_shares[base]

    def _failed(self, option: Option) -> bool:
        """Whether the option made a launch fail, or its loss differ, where the others had not."""
        return any(
            launch.levers - launch.base == {option.name}
            for launch in self.measured.launches
            if launch.levers in self.measured.failed and launch.stage.kind == "explore"
        )

    def _was_tried(self, option: Option) -> bool:
        return any(option.name in launch.levers for launch in self.measured.launches)

    def _expected(self, levers: Combination, base: Combination) -> Gain:
        """What levers promise: by their cards and the facts, and by what they gave on another base."""
        gain = self.search.model.gain(levers, base, self._host_share(base))
        added = levers - base
        if len(added) > 1:  # what is chosen together is chosen by its mean, not for being uncertain
            slow = [lever for lever in added if self.search.program(frozenset({lever})) is not None]
            alone = self.search.model.gain(base | set(slow), base, self._host_share(base))
            return Gain(gain.mean, min(gain.deviation, alone.deviation))
        earlier = self._tested_on(next(iter(added))) if base < levers else None
        if earlier is None:
            return gain
        measured = self._difference(*earlier)
        assert measured is not None
        then = self.search.model.gain(*earlier, self._host_share(earlier[1])).mean
        ratio = min(3.0, max(0.5, gain.mean / then)) if then * gain.mean > 0.0 else 1.0
        mean = measured.value * ratio
        return Gain(mean, math.hypot(0.3 * mean, measured.contrast.deviation) + gain.deviation * 0.25)

    def _tested_on(self, lever: str) -> tuple[Combination, Combination] | None:
        """The last combination in which a lever alone was new, and its base."""
        tested = [
            (launch.levers, launch.base)
            for launch in self.measured.launches
            if launch.stage.kind == "explore"
            and launch.log_rate is not None
            and launch.levers - launch.base == {lever}
            and launch.base < launch.levers
            and self._difference(launch.levers, launch.base) is not None
        ]
        return tested[-1] if tested else None

    # Refining

    def refine(self) -> NextLaunch | None:
        """One more launch of the lever that may matter most, or of what it is compared with; first of what
        was launched under another load than that."""
        base = self.best
        undecided = [levers for levers in self.built_on(base) if self._may_matter(levers, base)]
        undecided.sort(key=lambda levers: -self._optimistic(levers, base))
        for levers in (*self._under_other_load(base), *undecided):
            following = self._in_turn(levers, base)
            if self.deciding.made(following) >= self.search.most_launches:
                continue
            if self._fits(self.costs.of(following, base), self._confirming_s(levers)):
                return NextLaunch(levers=following, stage=REFINE, base=base, at_most_s=self.remaining_s)
        return None

    def _under_other_load(self, base: Combination) -> list[Combination]:
        """What was measured on top of a base, and cannot be compared with it."""
        built = {
            launch.levers
            for launch in self.deciding.launches
            if launch.base == base and launch.levers != base and launch.log_rate is not None
        }
        unknown = [
            levers for levers in built - self.measured.failed if self._difference(levers, base) is None
        ]
        return sorted(unknown, key=sorted)

    def tighten(self) -> NextLaunch | None:
        """Where nothing is faster: one more launch of what may still be, so that the bound says more."""
        if self.best:
            return None
        bounds = {
            levers: difference.high(_BOUND_ERROR)
            for levers in self.built_on(BASELINE)
            if (difference := self._difference(levers, BASELINE)) is not None
        }
        for levers in sorted(bounds, key=lambda levers: -bounds[levers]):
            if bounds[levers] <= math.log1p(self.search.threshold):
                return None
            following = self._in_turn(levers, BASELINE)
            allowed = self.deciding.made(following) < self.search.most_launches
            if allowed and self._fits(self.costs.of(following), 0.0):
                return NextLaunch(levers=following, stage=REFINE, at_most_s=self.remaining_s)
        return None

    def _in_turn(self, levers: Combination, base: Combination) -> Combination:
        """Whichever of the two has fewer launches; the base where they have as many."""
        return base if self.deciding.made(base) <= self.deciding.made(levers) else levers

    def _optimistic(self, levers: Combination, base: Combination) -> float:
        gain = self._posterior(levers, base)
        return gain.mean + _OPTIMISM * gain.deviation

    def _may_matter(self, levers: Combination, base: Combination) -> bool:
        return self._optimistic(levers, base) > math.log1p(self.search.threshold)

    # Confirming

    def confirm(self) -> NextLaunch | None:
        """One more launch of what the claim rests on; None where it is settled."""
        confirmed = self.confirmed
        for levers in confirmed.missing():
            if self._fits(self.costs.of(levers, self.best), 0.0):
                return NextLaunch(
                    levers=levers, stage=CONFIRM, base=confirmed.winner, at_most_s=self.remaining_s
                )
        return None

    @property
    def confirmed(self) -> Confirmation:
        return self.confirmation_of(self.best)

    def confirmation_of(self, chosen: Combination) -> Confirmation:
        """What new launches say of a combination."""
        return Confirmation(
            measured=self.measured,
            deciding=self.deciding,
            chosen=chosen,
            most_launches=self.search.most_launches,
            can_run=self.search.can_run,
            costs=self.costs,
            remaining_s=self.remaining_s,
        )
