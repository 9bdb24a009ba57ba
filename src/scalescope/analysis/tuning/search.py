"""The search of `tune`: what an expert would try, in an expert's order, decided from the launches so far.

1. The settings as they are.
2. The bundle: what an expert writes at once, in one launch; then the same with compilation.
3. Where that failed or is slower: its parts, one by one.
4. What else promises something on top of the best, the most per second first.
5. The race, in new launches made in turns: the best and the settings as they are until it is proven to be
   faster, then also the other good sets and the best without each of its parts. Whatever is clearly slower
   than the best leaves the race.

Of what is proven to be faster than the settings as they are, the simplest set within one standard error of
the fastest is recommended. Nothing is remembered besides the launches, so an interrupted search goes on.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from scalescope.analysis.tuning.launches import (
    BASELINE,
    Combination,
    LaunchCosts,
    Program,
    SpeedDifference,
    TunedLaunch,
    TunedLaunches,
)
from scalescope.analysis.tuning.step_model import StepModel
from scalescope.analysis.verdicts import LEAST_EFFECT
from scalescope.results.result import Stage

BASELINE_STAGE, EXPLORE, CONFIRM = Stage("baseline"), Stage("explore"), Stage("confirm")
LEAST_GAIN = math.log1p(LEAST_EFFECT)
_WORTH = LEAST_GAIN  # the least promise worth a launch: less is never recommended
_WORTH_WRITING = 0.02  # the least promise of what an expert writes only where it is worth it
_REPLACING = 0.05  # what another value must promise beyond one that was measured
_RATHER = 0.5  # of what compilation promises: a lever that promises more and compiles nothing goes first
_SETTLED = 2.5  # standard errors: a set so much slower than the best leaves the race
_RIVAL = 2.0  # standard errors: a set so near to the best joins it
_CLAIM = 0.01  # the error of a claim from launches in turns
_ERROR = 0.05  # of a bound on everything that was tried
_END_OF_INTERVAL = 0.025  # of an interval of 95 %: no bound is below one that tables show
_HALF = 0.47  # of the time, for finding that nothing helps: half of it with saying so

Support = Literal["confirmed", "when added", "untested"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A setting at another value."""

    name: str
    setting: str
    asked: bool = False  # by name: tried whatever it promises
    in_bundle: bool = False  # an expert writes it at once
    needs_promise: bool = False  # but only where it promises something
    sets_processes: bool = False  # that prepare batches
    compiles: bool = False
    switchable: bool = False  # in a running process


@dataclass(frozen=True, slots=True, kw_only=True)
class NextLaunch:
    """The next launch: of what, for what, and how long it may take; and what is tried in the same start."""

    levers: Combination
    stage: Stage
    base: Combination = BASELINE
    at_most_s: float | None = None
    within: tuple[Combination, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What to use, how sure that is, and what is still possible."""

    winner: Combination = BASELINE  # empty: the settings as they are
    recommended: bool = False
    gain: SpeedDifference | None = None  # of the winner over the settings as they are
    is_confirmed: bool = False  # in new launches, made in turns
    support: dict[str, Support]  # of each lever of the winner
    dropped: Combination = BASELINE  # levers of the fastest set that are not needed
    promises: Mapping[str, float] = field(default_factory=dict)  # of other levers, on top of the fastest set
    at_most: float | None = None  # nothing that was tried is faster than the baseline by more than this share


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSearch:
    """What is searched, and what a search may use."""

    options: Sequence[Option]
    model: StepModel
    can_run: Callable[[Combination], bool] = lambda levers: True
    program: Program = lambda levers: None
    budget_s: float | None = None  # all of it; None without one
    threshold: float = 0.03  # the smallest difference that matters
    most_launches: int = 5  # of a set in the race
    combine: bool = True

    def next_step(self, measured: TunedLaunches, remaining_s: float | None) -> NextLaunch | None:
        """The next launch; None where the search is over, or no useful launch fits into the time."""
        if not measured.count(BASELINE):
            return NextLaunch(levers=BASELINE, stage=BASELINE_STAGE, at_most_s=remaining_s)
        position = SearchPosition(search=self, measured=measured, remaining_s=remaining_s)
        return position.explored() or position.raced()

    def with_option(self, base: Combination, option: Option) -> Combination:
        """The base with an option, in place of what moves the same setting."""
        others = {other.name for other in self.options if other.setting == option.setting}
        return (base - others) | {option.name}

    def promise(self, levers: Combination, base: Combination) -> float:
        """The logarithm of the speedup that is expected of levers in place of others."""
        return self.model.gain(levers, base)


@dataclass(frozen=True, kw_only=True)
class SearchPosition:
    """A search after some launches."""

    search: TuningSearch
    measured: TunedLaunches
    remaining_s: float | None = None

    @cached_property
    def costs(self) -> LaunchCosts:
        return LaunchCosts(measured=self.measured, program=self.search.program)

    @cached_property
    def tried(self) -> frozenset[Combination]:
        return frozenset(launch.levers for launch in self.measured.launches if not launch.cut_short)

    @cached_property
    def values(self) -> dict[Combination, float]:
        """How much faster each usable set is than the settings as they are: the logarithm."""
        usable = (levers for levers in self.measured.combinations if levers not in self.measured.failed)
        differences = {levers: self.measured.difference(levers, BASELINE) for levers in usable if levers}
        known = {levers: difference.value for levers, difference in differences.items() if difference}
        return {BASELINE: 0.0, **known}

    @cached_property
    def best(self) -> Combination:
        """The fastest so far."""
        return max(self.values, key=lambda levers: (self.values[levers], -len(levers)))

    def is_proven(self, levers: Combination) -> bool:
        """Whether a set is faster than the settings as they are for sure."""
        gain = self.measured.difference(levers, BASELINE, with_tries=False)
        return gain is not None and gain.value > LEAST_GAIN and gain.low(self._error_of(levers)) > 0.0

    def _error_of(self, levers: Combination) -> float:
        """Of a claim about a set. Once there is a race, it alone supports claims: the other launches chose
        who is in it. The set that entered it first has half of the error, the others the rest."""
        if not self.measured.race.pairs(levers, BASELINE):
            return _alpha(len(self.measured.combinations) - 1)
        first, *others = [runner for runner in self.measured.race.combinations if runner]
        if not others:
            return _CLAIM
        return _CLAIM / 2 if levers == first else _CLAIM / 2 / len(others)

    # Exploring

    def explored(self) -> NextLaunch | None:
        """The next set that was not tried yet, and promises something."""
        plans = self._expert_plan() if self.search.combine else ()
        for levers, base in plans:
            if self._is_new(levers) and self._fits(levers, base):
                return self._exploring(levers, base)
        base = self.best if self.search.combine else BASELINE
        ranked = sorted(
            (
                (-worth / self.costs.of(levers, base), sorted(levers), levers)
                for levers, worth in self._rest(base)
            ),
            key=lambda ranked: ranked[:2],
        )
        return next(
            (self._exploring(levers, base) for _, _, levers in ranked if self._fits(levers, base)), None
        )

    def _exploring(self, levers: Combination, base: Combination) -> NextLaunch:
        reserve_s = self._pair_s(self.best)
        limit_s = None if self.remaining_s is None else max(0.0, self.remaining_s - reserve_s)
        within = self._within(levers, base) if self.search.combine else ()
        return NextLaunch(levers=levers, stage=EXPLORE, base=base, at_most_s=limit_s, within=within)

    def _within(self, levers: Combination, base: Combination) -> tuple[Combination, ...]:
        """What the same start can try too: what it can switch off or on, quick ones first, as time allows."""
        names = {option.name: option for option in self.search.options}
        switchable = [option for option in self.search.options if option.switchable]
        added = [o for o in self._by_promise(switchable, levers) if o.name not in levers]
        parts = [name for name in sorted(levers) if names[name].switchable and base == BASELINE]
        sets = [levers - {name} for name in parts]
        sets += [self.search.with_option(levers, option) for option in added if not option.compiles]
        sets = [tried for tried in sets if self.search.program(tried) is None]
        compiling = self._by_promise((o for o in self.search.options if o.compiles), levers)[:1]
        quicker = _RATHER * self._quicker_promise(levers)
        sets += [
            self.search.with_option(levers, option)
            for option in compiling
            if option.switchable and self._adds(option, levers) >= quicker
        ]
        wanted = [tried for tried in dict.fromkeys(sets) if tried and tried != base and self._is_new(tried)]
        if self.remaining_s is None:
            return tuple(wanted)
        left_s = self.remaining_s - self.costs.of(levers, base) - self._pair_s(self.best)
        chosen = []
        for tried in wanted:
            left_s -= self.costs.within(tried)
            if left_s >= 0.0:
                chosen.append(tried)
        return tuple(chosen)

    def _expert_plan(self) -> Iterable[tuple[Combination, Combination]]:
        """(set, what it is built on) in the order of an expert."""
        bundle = self.bundle
        top = BASELINE
        if bundle and not self._is_outpromised(bundle):
            yield bundle, BASELINE
            if bundle in self.tried and self.values.get(bundle, 0.0) <= 0.0:
                yield from self._parts_of_bundle()
            top = self.best
        for compiled, base in self._compiled_sets():
            if self._quicker_promise(top) > _RATHER * self.search.promise(compiled, base):
                return  # by what each promises in its time
            yield compiled, base
            if compiled not in self.measured.failed:
                return

    def _is_outpromised(self, bundle: Combination) -> bool:
        """Whether a lever that an expert would not write at once promises more than all of the bundle, also
        compiled: one of communication, for instance."""
        if bundle in self.tried:
            return False
        compiling = self._by_promise((o for o in self.search.options if o.compiles), bundle)[:1]
        best = [self.search.with_option(bundle, option) for option in compiling] or [bundle]
        others = [o for o in self.search.options if not (o.compiles or o.in_bundle)]
        promises = [self._adds(o, BASELINE) for o in self._by_promise(others, BASELINE)]
        return max(promises, default=0.0) > self.search.promise(best[0], BASELINE)

    def _compiled_sets(self) -> list[tuple[Combination, Combination]]:
        """For each way of compiling the set that should be the fastest with it, and what it comes from;
        the way that failed least comes first. After a failure only what promises more than the best."""
        compiling = {option.name for option in self.search.options if option.compiles}
        found = []
        for option in (option for option in self.search.options if option.compiles):
            pairs = []
            for eager, base in self._compilable().items():
                levers = self.search.with_option(eager, option)
                promise = 0.0 if eager & compiling else self.search.promise(levers, eager)
                if promise > _WORTH and self.search.can_run(levers) and not self._fails_to_compile(levers):
                    value = self.values[base] - max(0.0, self.search.promise(base, eager))
                    pairs.append((value + promise, levers, base))
            if self._failed_programs:
                pairs = [pair for pair in pairs if pair[0] > self.values[self.best] + _WORTH]
            if pairs and frozenset({option.name}) not in self.measured.failed:
                failures = sum(option.name in program for program in self._failed_programs)
                value, levers, base = max(pairs, key=lambda pair: pair[0])
                found.append((failures, -value, levers, base))
        found.sort(key=lambda ranked: ranked[:2])
        return [(levers, base) for _, _, levers, base in found]

    def _compilable(self) -> dict[Combination, Combination]:
        """Sets to compile, each with the measured one that it comes from: itself, or one with a part more of
        what failed to compile."""
        sets = {levers: levers for levers in self.values}
        for program in self._failed_programs:
            for base, name in itertools.product(self.values, sorted(program)):
                if name in base:
                    sets.setdefault(base - {name}, base)
        return sets

    @cached_property
    def _failed_programs(self) -> frozenset[Combination]:
        failed = (launch for launch in self.measured.launches if launch.log_rate is None)
        programs = {self.search.program(launch.levers) for launch in failed if not launch.cut_short}
        made = {self.search.program(levers) for levers in self.measured.combinations}
        return frozenset(program for program in programs - made if program is not None)

    def _fails_to_compile(self, levers: Combination) -> bool:
        return self.search.program(levers) in self._failed_programs

    def _parts_of_bundle(self) -> Iterable[tuple[Combination, Combination]]:
        """What promises something alone, one by one; then the bundle without what turned out to be slower."""
        promises = {name: self.search.promise(frozenset({name}), BASELINE) for name in self.bundle}
        for name in sorted(promises, key=lambda name: (-promises[name], name)):
            if promises[name] > _WORTH:
                yield frozenset({name}), BASELINE
        slower = {name for name in self.bundle if self.values.get(frozenset({name}), 0.0) < 0.0}
        failed = {name for name in self.bundle if frozenset({name}) in self.measured.failed}
        kept = self.bundle - slower - failed
        if kept and kept != self.bundle and self.search.promise(kept, BASELINE) > _WORTH:
            yield kept, BASELINE

    def _quicker_promise(self, base: Combination) -> float:
        """The most that a lever which compiles nothing still promises on top of a base."""
        compiling = {option.name for option in self.search.options if option.compiles}
        return max(
            (worth for levers, worth in self._rest(base) if not (levers - base) & compiling), default=0.0
        )

    @cached_property
    def bundle(self) -> Combination:
        """What an expert writes at once, whatever it promises alone: compilation may bring it about. Of every
        setting the best value beside the others; loader processes only where somebody waits for them, and as
        many as the compiled step needs. Once it was launched, it is what was launched."""
        bundled = {option.name for option in self.search.options if option.in_bundle}
        explored = (launch.levers for launch in self.measured.launches if launch.stage.kind == "explore")
        first = next(explored, BASELINE)
        if first and first <= bundled:
            return first
        chosen = self._with_bundled(BASELINE)
        compiling = self._by_promise((o for o in self.search.options if o.compiles), chosen)
        fastest = self.search.with_option(chosen, compiling[0]) if compiling else chosen
        processes = self._by_promise((o for o in self.search.options if o.sets_processes), fastest)
        if not processes:
            return chosen
        return self._with_bundled(self.search.with_option(chosen, processes[0]))  # some need processes

    def _with_bundled(self, chosen: Combination) -> Combination:
        """With the best value of every setting of the bundle, one after the other."""
        while True:
            taken = {option.setting for option in self.search.options if option.name in chosen}
            free = [o for o in self.search.options if o.in_bundle and o.setting not in taken]
            ranked = [o for o in self._by_promise(free, chosen, least=-math.inf) if self._belongs(o, chosen)]
            if not ranked:
                return chosen
            chosen = self.search.with_option(chosen, ranked[0])

    def _belongs(self, option: Option, chosen: Combination) -> bool:
        """Whether an expert would write it at once beside others."""
        if option.sets_processes:
            return False
        if not option.needs_promise:
            return True
        compiling = self._by_promise((o for o in self.search.options if o.compiles), chosen)[:1]
        bases = [chosen, *(self.search.with_option(chosen, compiled) for compiled in compiling)]
        return any(self._adds(option, base) > _WORTH_WRITING for base in bases)

    def _adds(self, option: Option, base: Combination) -> float:
        return self.search.promise(self.search.with_option(base, option), base)

    def _by_promise(
        self, options: Iterable[Option], base: Combination, least: float = _WORTH
    ) -> list[Option]:
        """Options that promise enough on top of a base and can run, the most promising first."""
        promises = {
            option: self._adds(option, base)
            for option in options
            if frozenset({option.name}) not in self.measured.failed
            and self.search.can_run(self.search.with_option(base, option))
        }
        wanted = [option for option in promises if promises[option] >= least or option.asked]
        return sorted(
            wanted, key=lambda option: -round(promises[option], 3)
        )  # of equals the first on its card

    def _rest(self, base: Combination) -> Iterable[tuple[Combination, float]]:
        """Sets with one option more, and what each promises."""
        for option in self.search.options:
            levers = self.search.with_option(base, option)
            if option.name in base or not self._is_new(levers) or self._has_disappointed(option):
                continue
            promise = self.promise(levers, base)
            is_wanted = option.asked and not any(option.name in tried for tried in self.tried)
            if promise > _WORTH or is_wanted:
                yield levers, max(promise, 1e-9)

    def promise(self, levers: Combination, base: Combination) -> float:
        """What a set promises in place of another, after what was measured of that."""
        return self._replacing(levers, base) if base - levers else self.search.promise(levers, base)

    def _replacing(self, levers: Combination, base: Combination) -> float:
        """What another value promises in place of a measured one, by what the base gave of its promise."""
        promise = self.search.promise
        if not self.search.model.knows_effect(base - levers):
            return promise(levers, base) - _REPLACING
        kept = base & levers
        promised = promise(base, BASELINE)
        given = self.values.get(base, promised) / promised if promised > _REPLACING else 1.0
        return promise(levers, kept) - given * promise(base, kept) - _REPLACING

    def _has_disappointed(self, option: Option) -> bool:
        """Whether a set with it is not faster than the same without it, or failed where that works."""
        for levers in self.tried:
            without = levers - {option.name}
            if option.name not in levers or without not in self.values or self._is_new(levers):
                continue
            difference = self.measured.difference(levers, without)
            if levers in self.measured.failed or (difference and difference.value < LEAST_GAIN):
                return True
        return False

    def _is_settled_by(self, launch: TunedLaunch) -> bool:
        """Whether a launch of exploring says what a set is worth: one that was disturbed is repeated once."""
        again = self.measured.made(launch.levers) > 1
        if launch.stage.kind != "explore" or launch.cut_short:
            return False  # with more time it may work
        return launch.log_rate is None or launch.is_quiet or again

    def _is_new(self, levers: Combination) -> bool:
        made = [launch for launch in self.measured.launches if launch.levers == levers]
        if not self.search.can_run(levers) or self._fails_to_compile(levers):
            return False
        return not any(map(self._is_settled_by, made))

    def promises(self) -> dict[str, float]:
        """What every other lever may give on top of the best; nothing where that is not worth a launch."""
        base = self.best if self.search.combine else BASELINE
        others = [option for option in self.search.options if option.name not in base]
        promises = {option.name: self._adds(option, base) for option in others}
        return {name: promise for name, promise in promises.items() if promise > _WORTH}

    # Time

    def _fits(self, levers: Combination, base: Combination) -> bool:
        """Whether a launch leaves time to measure the best and the settings as they are once more."""
        if self.remaining_s is None:
            return True
        return self.costs.of(levers, base) + self._pair_s(self.best) <= self.remaining_s

    def _pair_s(self, levers: Combination) -> float:
        return self.costs.of(levers) + self.costs.of(BASELINE) if levers else 0.0

    # The race

    def raced(self) -> NextLaunch | None:
        """One more launch of what is still in the race, whichever has had the fewest."""
        runners = self.runners()
        launched = [launch.levers for launch in self.measured.race.launches]
        counts = {levers: launched.count(levers) for levers in runners}
        order = {levers: place for place, levers in enumerate(runners)}
        for levers in sorted(runners, key=lambda levers: (counts[levers], order[levers])):
            is_affordable = self.remaining_s is None or self.costs.of(levers, self.best) <= self.remaining_s
            if counts[levers] < self.search.most_launches and is_affordable:
                return NextLaunch(levers=levers, stage=CONFIRM, base=self.best, at_most_s=self.remaining_s)
        return None

    def runners(self) -> list[Combination]:
        """What is still in the race, the most needed first; empty where everything is settled."""
        best = self.best
        if not best:
            return self._bounding()
        if self.values[best] < math.log1p(self.search.threshold) and self._is_half_over():
            return []  # what nobody would notice is not worth the rest of the time
        others = [levers for levers in self._against(best) if not self._is_settled(levers, best)]
        pairs = len(self.measured.race.pairs(best, BASELINE))
        enough = self.measured.race.made(best) >= self.search.most_launches
        needs_pair = pairs < self.search.most_launches and not enough
        if needs_pair and pairs and not self.is_proven(best):
            return [best, BASELINE]
        if not others and not needs_pair:
            return []
        return list(dict.fromkeys([best, BASELINE, *others])) if needs_pair else [best, *others]

    def _against(self, best: Combination) -> list[Combination]:
        """The best without what it may not need, the least promising part first; and what is as fast."""
        promises = {name: self.search.promise(best, best - {name}) for name in best}
        idle = frozenset(name for name in best if promises[name] <= _WORTH)
        without = [best - idle] if len(idle) > 1 else []
        without += [best - {name} for name in sorted(best, key=lambda name: (promises[name], name))]
        usable = [levers for levers in without if levers and levers not in self.measured.failed]
        near = [levers for levers in self.values if levers not in (best, BASELINE)]
        rivals = [levers for levers in near if self.errors_behind(levers, best) < _RIVAL]
        return list(dict.fromkeys([*filter(self.search.can_run, usable), *rivals]))

    def _is_settled(self, levers: Combination, best: Combination) -> bool:
        """Whether a set is slower than the best for sure."""
        return bool(self.measured.count(levers)) and self.errors_behind(levers, best) > _SETTLED

    def errors_behind(self, levers: Combination, best: Combination) -> float:
        """By how many standard errors the best is faster."""
        difference = self.measured.difference(best, levers)
        if difference is not None:
            return difference.value / max(difference.contrast.deviation, 1e-12)
        if best not in self.values or levers not in self.values:
            return 0.0
        variance, _ = self.measured.spread()  # under other loads: each against the settings as they are
        return (self.values[best] - self.values[levers]) / math.sqrt(4.0 * variance)

    def _is_half_over(self) -> bool:
        """Whether another launch would take more than half of the budget."""
        budget_s = self.search.budget_s
        if self.remaining_s is None or budget_s is None:
            return False
        return budget_s - self.remaining_s + self.costs.of(self.best) > _HALF * budget_s

    def _bounding(self) -> list[Combination]:
        """Where nothing is faster: what may still be, until that is ruled out or half of the time is over."""
        if self._is_half_over():
            return []
        differences = {levers: self.measured.difference(levers, BASELINE) for levers in self.values if levers}
        highs = {levers: d.high(_END_OF_INTERVAL) for levers, d in differences.items() if d is not None}
        doubtful = [levers for levers in highs if highs[levers] > math.log1p(self.search.threshold)]
        return [BASELINE, *sorted(doubtful, key=lambda levers: -highs[levers])[:1]] if doubtful else []


def conclude(search: TuningSearch, measured: TunedLaunches) -> Conclusion:
    """What the launches so far allow to say."""
    if not measured.count(BASELINE):
        return Conclusion(support={})
    position = SearchPosition(search=search, measured=measured)
    launched = [levers for levers in position.values if measured.fresh.count(levers)]
    fastest = max(launched, key=lambda levers: position.values[levers])
    proven = [levers for levers in launched if levers and position.is_proven(levers)]
    winner = _simplest(position, proven, launched) if proven else fastest
    recommended = bool(proven)
    return Conclusion(
        winner=winner,
        recommended=recommended,
        gain=measured.difference(winner, BASELINE, with_tries=False) if winner else None,
        is_confirmed=bool(winner and measured.race.pairs(winner, BASELINE)),
        support={lever: _support(position, lever, winner) for lever in sorted(winner)},
        dropped=fastest - winner,
        promises=position.promises(),
        at_most=None if recommended else _at_most(position),
    )


def _simplest(
    position: SearchPosition, candidates: Sequence[Combination], launched: Sequence[Combination]
) -> Combination:
    """The candidate of fewest levers than which none is faster by more than a standard error; where each is
    slower than some other one, the least so. What was only tried in another's start is not recommended."""
    behind = {
        levers: max(
            (position.errors_behind(levers, other) for other in launched if other != levers), default=0.0
        )
        for levers in candidates
    }
    limit = max(1.0, min(behind.values()))
    near = [levers for levers in candidates if behind[levers] <= limit]
    return min(near, key=lambda levers: (len(levers), -position.values[levers]))


def _support(position: SearchPosition, lever: str, winner: Combination) -> Support:
    without = winner - {lever}
    launched = position.measured.difference(winner, without, with_tries=False)
    if launched is not None and launched.low(_ERROR) > 0.0:
        return "confirmed"
    return "untested" if position.measured.difference(winner, without) is None else "when added"


def _at_most(position: SearchPosition) -> float | None:
    """What the fastest of all that was tried may gain at most, by the most doubtful of them."""
    differences = [position.measured.difference(levers, BASELINE) for levers in position.values if levers]
    known = [difference for difference in differences if difference is not None]
    if not known:
        return None
    alpha = _alpha(len(known))
    return max(0.0, math.expm1(max(difference.high(alpha) for difference in known)))


def _alpha(tried: int) -> float:
    """The error of a bound on one of several: that of an interval, or less."""
    return min(_END_OF_INTERVAL, _ERROR / max(1, tried))
