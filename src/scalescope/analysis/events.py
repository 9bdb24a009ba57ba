"""Events: work that is not in every step, such as evaluations, checkpoints and logging.

An event is a set of steps that take longer than plain ones. Where ranks noted what the script did, the notes
are the set and its name. All other events are found by where long steps stand: at one phase of a period,
more of them are among the longest steps than by chance. That is the chance of a random order, corrected for
all periods and phases, so neither the size nor the shape of the noise matters, and hiccups of a machine are
not events. Events may share steps: every 100th step must stand out among every 50th, if those are one.
"""

import dataclasses
import functools
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LEAST_PERIOD = 3  # of every second step neither kind is the plain one
_CHANCE = 0.01  # that long steps stand at any period
_LEAST_OCCURRENCES = 3  # in all launches, of an event that was not noted
_PRESENT = 0.8  # of the steps of a period are long
_MOSTLY = 0.5
_LONGEST = 40  # steps, whose distances may be periods
_MOST_PERIODS = 60  # that are tried
_MOST_EVENTS = 5
_NEIGHBOURS = 15  # steps on each side, whose median is what a step takes at this time
_RARE = 1 / 3  # of all steps: what is noted in more of them is a part of the step
_LEAST_SHARE = 0.005  # of a step; less is not told
_SURE = 2.0  # standard errors that the cost of a noted event is above zero
_ROUNDS = 20  # until the costs of events that share steps have settled


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that a rank noted of the script."""

    step: int  # of the window, from 0
    kind: str
    time_s: float | None = None  # None is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeries:
    """The measured steps of one rank in one launch."""

    times_s: tuple[float, ...] = ()
    notes: tuple[Note, ...] = ()
    input_wait_s: float | None = None  # of the host for batches, per step; None is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Work that some steps have and others do not."""

    kind: str | None  # as it was noted; None is unknown
    period: int | None  # in steps; None where it came too seldom or not regularly
    steps: tuple[tuple[int, ...], ...]  # of each launch, that have it
    length_s: float  # beyond a plain step, the mean
    cost_s: float  # per step of the launches

    @property
    def occurrences(self) -> int:
        return sum(map(len, self.steps))

    @property
    def name(self) -> str:
        """`evaluation every 50 steps`."""
        kind = self.kind or "work"
        if self.period is not None:
            return f"{kind} every {self.period} steps"
        return f"{kind} in {'1 step' if self.occurrences == 1 else f'{self.occurrences} steps'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvents:
    """The events of all launches, the most expensive first; the costs and the plain step add up to a step."""

    plain_s: float
    events: tuple[Event, ...] = ()

    @property
    def cost_s(self) -> float:
        """Of all events, per step."""
        return math.fsum(event.cost_s for event in self.events)

    def scaled_to(self, step_s: float, *, noted_alone: bool = False) -> "StepEvents":
        """The same shares of a step that takes so long, as the mean over launches is one of logarithms; on
        request without events that nobody noted."""
        factor = step_s / (self.plain_s + self.cost_s)
        events = tuple(
            dataclasses.replace(event, length_s=event.length_s * factor, cost_s=event.cost_s * factor)
            for event in self.events
            if event.kind is not None or not noted_alone
        )
        return StepEvents(plain_s=step_s - math.fsum(event.cost_s for event in events), events=events)

    def explain(self, launch: int, step: int) -> bool:
        """Whether a step is long because it, or on another rank the one before it, has an event."""
        return any({step, step - 1} & set(event.steps[launch]) for event in self.events)


@dataclass(frozen=True, slots=True)
class _Member:
    """An event before its cost is known."""

    kind: str | None
    period: int | None
    steps: tuple[frozenset[int], ...]


@functools.lru_cache(maxsize=256)
def step_events(launches: tuple[StepSeries, ...]) -> StepEvents:
    """The events of launches of one configuration: those that were noted, and those that long steps show."""
    if not all(launch.times_s for launch in launches):
        return StepEvents(plain_s=0.0)
    noted = _noted(launches)
    times_s = [launch.times_s for launch in launches]
    room_s = beside_input_s(launches)
    members = [*noted, *_found(times_s, noted)]
    while True:
        events = _with_costs(times_s, members)
        sure = [
            member
            for member, event in zip(members, events.events, strict=True)
            if _is_worth(event, events, times_s) and (event.kind is not None or event.cost_s <= room_s)
        ]
        if len(sure) == len(members):
            break
        members = sure
    parted = [part for event in events.events for part in _parted(event, launches)]
    return StepEvents(plain_s=events.plain_s, events=tuple(sorted(parted, key=lambda event: -event.cost_s)))


@functools.lru_cache(maxsize=256)
def periods_of(times_s: tuple[float, ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """The periods of long steps among those of one rank, each with the steps that are long."""
    members = _found([times_s], [])
    return tuple((member.period or 0, tuple(sorted(member.steps[0]))) for member in members)


# What was noted.


def _noted(launches: Sequence[StepSeries]) -> list[_Member]:
    """Kinds of notes; those in the very same steps are one until their costs are parted."""
    kinds = dict.fromkeys(note.kind for launch in launches for note in launch.notes)
    total = sum(len(launch.times_s) for launch in launches)
    by_steps: dict[tuple[frozenset[int], ...], list[str]] = {}
    for kind in kinds:
        steps = tuple(
            frozenset(note.step for note in launch.notes if note.kind == kind)
            & frozenset(range(len(launch.times_s)))
            for launch in launches
        )
        if 0 < sum(map(len, steps)) <= _RARE * total:
            by_steps.setdefault(steps, []).append(kind)
    return [
        _Member("+".join(kinds), _regular_period(steps, launches), steps) for steps, kinds in by_steps.items()
    ]


def _regular_period(steps: Sequence[frozenset[int]], launches: Sequence[StepSeries]) -> int | None:
    """The one distance of all, where none is missing before, between or after them."""
    distances = {b - a for member in steps for a, b in itertools.pairwise(sorted(member))}
    if len(distances) != 1:
        return None
    (period,) = distances
    covers = all(
        min(member) < period and len(launch.times_s) - max(member) <= period
        for member, launch in zip(steps, launches, strict=True)
        if member
    )
    return period if covers else None


def _parted(event: Event, launches: Sequence[StepSeries]) -> Iterator[Event]:
    """Of kinds in the very same steps, those with a known time get it, and the others what is left."""
    if event.kind is None or "+" not in event.kind:
        yield event
        return
    kinds = event.kind.split("+")
    known = {kind: time_s for kind in kinds if (time_s := _noted_s(kind, launches)) is not None}
    unknown = [kind for kind in kinds if kind not in known]
    scale = event.length_s / (math.fsum(known.values()) or event.length_s)
    scale = min(1.0, scale) if unknown else scale
    lengths = {kind: time_s * scale for kind, time_s in known.items()}
    left_s = event.length_s - math.fsum(lengths.values())
    lengths |= dict.fromkeys(unknown, left_s / max(1, len(unknown)))
    for kind, length_s in lengths.items():
        cost_s = event.cost_s * length_s / event.length_s
        yield Event(kind=kind, period=event.period, steps=event.steps, length_s=length_s, cost_s=cost_s)


def _noted_s(kind: str, launches: Sequence[StepSeries]) -> float | None:
    """What a kind took in each of its steps; None where that is unknown."""
    notes = [note for launch in launches for note in launch.notes if note.kind == kind]
    times_s = [note.time_s for note in notes if note.time_s is not None]
    return statistics.fmean(times_s) if len(times_s) == len(notes) else None


# What long steps show.


class _Launch:
    """One launch of a search: how far each step stands out among those of the same events."""

    def __init__(self, times_s: Sequence[float]) -> None:
        self.count = len(times_s)
        self.excess_s = _excess_s(times_s)

    def rank(self, members: Sequence[frozenset[int]]) -> None:
        """Number the steps of each class, the longest first."""
        self.classes: list[tuple[bool, ...]] = [
            tuple(step in member for member in members) for step in range(self.count)
        ]
        self.sizes = Counter(self.classes)
        self.ranks = [0] * self.count
        self.longest: dict[tuple[bool, ...], list[int]] = {}
        seen: Counter[tuple[bool, ...]] = Counter()
        for step in sorted(range(self.count), key=lambda step: -self.excess_s[step]):
            name = self.classes[step]
            seen[name] += 1
            self.ranks[step] = seen[name]
            if seen[name] <= _LONGEST:
                self.longest.setdefault(name, []).append(step)

    def distances(self) -> Counter[int]:
        """Between long steps; those of the very longest count more."""
        found: Counter[int] = Counter()
        for steps in self.longest.values():
            for (i, first), (j, second) in itertools.combinations(enumerate(steps), 2):
                distance = abs(first - second)
                if LEAST_PERIOD <= distance < self.count:
                    found[distance] += 1 + 8 // (1 + max(i, j))
        return found

    def best_phase(self, period: int, least: int) -> "_Phase":
        """The phase whose steps are the least likely to be so long."""
        phases = Counter(step % period for steps in self.longest.values() for step in steps)
        found = [
            self._phase(positions)
            for phase, longest in phases.items()
            if longest >= 2 and len(positions := range(phase, self.count, period)) >= least
        ]
        return min(found, key=lambda phase: phase.log_chance, default=_Phase())

    def _phase(self, positions: range) -> "_Phase":
        """Compared with other steps of the class that most of these steps belong to, and with as many phases
        and periods as such a class may have."""
        name, count = Counter(self.classes[step] for step in positions).most_common(1)[0]
        size = self.sizes[name]
        if count < 2 or count == size:
            return _Phase()
        ordered = sorted(self.ranks[step] for step in positions if self.classes[step] == name)
        choices = range(math.ceil(_PRESENT * count), count + 1)
        log_chance, taken = min(
            (_log_chance(taken, count, ordered[taken - 1], size), taken) for taken in choices
        )
        last = ordered[taken - 1]
        members = {step for step in positions if self.classes[step] == name and self.ranks[step] <= last}
        # One that is too short for a place among the longest may belong to them, but not a plain step.
        least_s = _MOSTLY * statistics.median(self.excess_s[step] for step in members)
        return _Phase(
            min(0.0, log_chance + math.log(len(choices) * size / count)),
            tuple(step for step in positions if step in members or self.excess_s[step] >= least_s),
            size // 2,
        )


@dataclass(frozen=True, slots=True)
class _Phase:
    """Long steps at one phase of a period."""

    log_chance: float = 0.0  # that random steps at any phase are as long
    steps: tuple[int, ...] = ()
    periods: int = 1  # that are possible

    @property
    def is_likely(self) -> bool:
        """Whether it says nothing on its own."""
        return self.log_chance > math.log(_MOSTLY)


def _log_chance(taken: int, count: int, last: int, size: int) -> float:
    """That any `taken` of `count` random steps are among the `last` longest of `size`, at most."""
    return _log_choose(count, taken) + _log_choose(last, taken) - _log_choose(size, taken)


def _log_choose(total: int, taken: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(taken + 1) - math.lgamma(total - taken + 1)


def _excess_s(times_s: Sequence[float]) -> list[float]:
    """Beyond the median of the steps around: load that comes and goes moves many steps."""
    return [
        time_s - statistics.median(times_s[max(0, step - _NEIGHBOURS) : step + _NEIGHBOURS + 1])
        for step, time_s in enumerate(times_s)
    ]


def _found(times_s: Sequence[Sequence[float]], known: Sequence[_Member]) -> list[_Member]:
    """Greedily the least likely period, then the next one among steps of the same events."""
    launches = [_Launch(times) for times in times_s]
    found: list[_Member] = []
    while len(found) < _MOST_EVENTS:
        members = [*known, *found]
        for number, launch in enumerate(launches):
            launch.rank([member.steps[number] for member in members])
        best = min(_candidates(launches), default=None, key=lambda pair: pair[0])
        if best is None or best[0] >= _CHANCE:
            break
        found.append(best[1])
    return found


def _candidates(launches: Sequence[_Launch]) -> Iterator[tuple[float, _Member]]:
    """Periods with the chance that such a one is found in random orders, among all periods."""
    distances: Counter[int] = sum((launch.distances() for launch in launches), Counter())
    least = _LEAST_OCCURRENCES if len(launches) == 1 else 2
    for period, _ in distances.most_common(_MOST_PERIODS):
        phases = [launch.best_phase(period, least) for launch in launches]
        able = [
            phase
            for phase, launch in zip(phases, launches, strict=True)
            if launch.count > (least - 1) * period
        ]
        shown = [phase for phase in able if not phase.is_likely]
        if sum(len(phase.steps) for phase in shown) < _LEAST_OCCURRENCES or len(shown) <= _MOSTLY * len(able):
            continue
        chance = _joint_chance([phase.log_chance for phase in able])
        steps = tuple(frozenset(() if phase.is_likely else phase.steps) for phase in phases)
        yield chance * max(phase.periods for phase in shown), _Member(None, period, steps)


def _joint_chance(log_chances: Sequence[float]) -> float:
    """Fisher's method: the probability that the product of this many chances is so small."""
    total = math.fsum(log_chances)
    return math.exp(total) * math.fsum((-total) ** n / math.factorial(n) for n in range(len(log_chances)))


# What events cost.


def _with_costs(times_s: Sequence[Sequence[float]], members: Sequence[_Member]) -> StepEvents:
    """Each event's own time in the steps that it shares with others; the plain step is that without any."""
    means = [statistics.fmean(times) for times in times_s]
    plains = [
        statistics.fmean([t for step, t in enumerate(times) if not _in_any(step, number, members)] or times)
        for number, times in enumerate(times_s)
    ]
    if not members:
        return StepEvents(plain_s=statistics.fmean(means) if means else 0.0)
    lengths = _lengths_s(times_s, plains, members)
    raw = [
        statistics.fmean(
            length_s * len(steps) / len(times) for steps, times in zip(m.steps, times_s, strict=True)
        )
        for length_s, m in zip(lengths, members, strict=True)
    ]
    beyond_s = statistics.fmean(means) - statistics.fmean(plains)
    scale = beyond_s / math.fsum(raw) if math.fsum(raw) > 0.0 else 0.0
    return StepEvents(
        plain_s=statistics.fmean(plains),
        events=tuple(
            Event(
                kind=member.kind,
                period=member.period,
                steps=tuple(tuple(sorted(steps)) for steps in member.steps),
                length_s=length_s,
                cost_s=cost_s * scale,
            )
            for member, length_s, cost_s in zip(members, lengths, raw, strict=True)
        ),
    )


def _in_any(step: int, launch: int, members: Sequence[_Member]) -> bool:
    return any(step in member.steps[launch] for member in members)


def _lengths_s(
    times_s: Sequence[Sequence[float]], plains: Sequence[float], members: Sequence[_Member]
) -> list[float]:
    """By least squares: each one's mean of what the others leave of its steps."""
    lengths = [0.0] * len(members)
    cells = [
        [
            (times_s[launch][step] - plains[launch], launch, step)
            for launch, steps in enumerate(m.steps)
            for step in steps
        ]
        for m in members
    ]
    for _, number in itertools.product(range(_ROUNDS), range(len(members))):
        others = [
            (length, m) for n, (length, m) in enumerate(zip(lengths, members, strict=True)) if n != number
        ]
        lengths[number] = statistics.fmean(
            beyond_s - math.fsum(length for length, m in others if step in m.steps[launch])
            for beyond_s, launch, step in cells[number]
        )
    return lengths


def beside_input_s(launches: Sequence[StepSeries]) -> float:
    """The time per step in which ranks do not wait for batches, which loader processes deliver in turns: what
    seems to take longer is waiting."""
    beside_s = [
        math.fsum(launch.times_s) / max(1, len(launch.times_s)) - (launch.input_wait_s or 0.0)
        for launch in launches
    ]
    return math.fsum(beside_s) / max(1, len(beside_s))


def _is_worth(event: Event, events: StepEvents, times_s: Sequence[Sequence[float]]) -> bool:
    """Whether an event takes time that can be seen; that of a noted one may be too short for that."""
    if event.cost_s < _LEAST_SHARE * (events.plain_s + events.cost_s):
        return False
    if event.kind is None:
        return True
    plain = [
        time_s
        for launch, times in enumerate(times_s)
        for step, time_s in enumerate(times)
        if not any(step in event.steps[launch] for event in events.events)
    ]
    spread_s = statistics.stdev(plain) if len(plain) > 1 else 0.0
    return event.length_s > _SURE * spread_s / math.sqrt(event.occurrences)
