"""Rounds: launches made next to each other, the only ones that are held against each other.

On a busy machine rounds differ by a factor, launches within a round by a few percent. So every launch is
described by its configuration and its round (y = round + configuration + rest, on the logarithm), and what a
round has made faster or slower is taken out of its launches. Within a round, launches count where others
disturbed none of them, or wanted about as many cores during each: the same load may delay two ranks and not
one, and that belongs to the answer (decision 32). Evidence about load decides, never the speed.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from scalescope.results.other_load import OtherLoad
from scalescope.results.result import Result

Round = Hashable
_ADJACENT_S = 900.0  # between two launches of a round: longer ago, the machine was another one
ENOUGH_QUIET = 3  # rounds without a disturbance: the others are then not needed
_ALIKE_CORES, _ALIKE_SHARE = 0.5, 0.35  # by which the load of two launches of a round may differ
_ITERATIONS, _CONVERGED = 1000, 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One launch, by its configuration and its round."""

    configuration: str
    round: Round
    load: OtherLoad
    threads: int  # of all ranks
    is_ablation: bool = False

    @property
    def is_quiet(self) -> bool:
        return not self.load.disturbs

    def is_alike(self, other: "Cell") -> bool:
        """Whether others loaded the machine alike during both."""
        if self.is_quiet and other.is_quiet:
            return True
        demands = self.load.demand_of_others(self.threads), other.load.demand_of_others(other.threads)
        same_gpus = self.load.gpu_processes == other.load.gpu_processes
        same_clock = self.load.slows_gpus == other.load.slows_gpus
        near = abs(demands[0] - demands[1]) <= max(_ALIKE_CORES, _ALIKE_SHARE * max(demands))
        return near and same_gpus and same_clock


def cell_of(result: Result, round_: Round | None) -> Cell:
    """A launch in the form that is compared with others."""
    trial = result.trial
    return Cell(
        configuration=result.trial_id,
        round=round_,
        load=result.other_load,
        threads=trial.world_size * trial.threads_per_rank,
        is_ablation=trial.is_ablation,
    )


def rounds_of(results: Sequence[Result]) -> list[Round | None]:
    """The round of each launch: those of one number that were made next to each other; None in a search,
    which makes its launches one by one."""
    begins = [datetime.fromisoformat(result.started_at).timestamp() for result in results]
    rounds: list[Round | None] = [None] * len(results)
    last: dict[int, tuple[Round, float]] = {}
    for index in sorted(range(len(results)), key=lambda index: begins[index]):
        result = results[index]
        if result.stage is not None:
            continue
        round_, end = last.get(result.launch, (None, 0.0))
        if round_ is None or begins[index] - end > _ADJACENT_S:
            round_ = (result.launch, begins[index])
        rounds[index] = round_
        last[result.launch] = round_, begins[index] + result.duration_s
    return rounds


def comparable(cells: Sequence[Cell]) -> list[bool]:
    """Which launches count: of each round the most that had alike load; and where undisturbed rounds suffice,
    only those. A configuration that is compared with no other has none."""
    by_round: dict[Round, list[int]] = defaultdict(list)
    for index, cell in enumerate(cells):
        by_round[cell.round].append(index)
    groups = [_alike(members, cells) for members in by_round.values()]
    linked = {cells[index].configuration for group in groups if len(group) > 1 for index in group}
    kept = {index for group in groups for index in group if cells[index].configuration in linked}
    quiet = {index for index in kept if cells[index].is_quiet}
    if _suffice(quiet, kept, cells):
        kept = quiet
    return [index in kept for index in range(len(cells))]


def _alike(members: Sequence[int], cells: Sequence[Cell]) -> list[int]:
    """The largest group of launches with alike load; of equally large ones the undisturbed, then the least
    loaded. Where no two are alike, none counts."""
    groups = [[other for other in members if cells[index].is_alike(cells[other])] for index in members]
    best = max(groups, key=lambda group: (len(group), sum(cells[index].is_quiet for index in group)))
    return best if len(best) > 1 or len(members) == 1 else []


def _suffice(quiet: Collection[int], kept: Collection[int], cells: Sequence[Cell]) -> bool:
    """Whether all that was asked for was compared in enough undisturbed rounds."""
    counts, quiet_counts = (
        Counter(cells[index].configuration for index in some if not cells[index].is_ablation)
        for some in (kept, quiet)
    )
    return all(quiet_counts[name] >= min(ENOUGH_QUIET, count) for name, count in counts.items())


def round_effects(values: Mapping[tuple[Round, str], float]) -> dict[Round, float]:
    """What each round adds to the logarithm of the speed of its launches, by least squares: 0 on average.

    `values` are by round and configuration. Rounds that no configuration links have an average of their own.
    A configuration that shares no round with another says nothing about rounds.
    """
    in_round = Counter(round_ for round_, _ in values)
    linked = {name for round_, name in values if in_round[round_] > 1}
    values = {place: value for place, value in values.items() if place[1] in linked}
    rounds: dict[Round, list[tuple[str, float]]] = defaultdict(list)
    configurations: dict[str, list[tuple[Round, float]]] = defaultdict(list)
    for (round_, name), value in values.items():
        rounds[round_].append((name, value))
        configurations[name].append((round_, value))
    effects = dict.fromkeys(rounds, 0.0)
    for _ in range(_ITERATIONS):
        levels = {
            name: statistics.fmean(value - effects[round_] for round_, value in members)
            for name, members in configurations.items()
        }
        fitted = {
            round_: statistics.fmean(value - levels[name] for name, value in members)
            for round_, members in rounds.items()
        }
        change = max((abs(fitted[round_] - effects[round_]) for round_ in rounds), default=0.0)
        effects = fitted
        if change < _CONVERGED:
            break
    return _centred(effects, configurations.values())


def _centred(
    effects: dict[Round, float], configurations: Iterable[Sequence[tuple[Round, float]]]
) -> dict[Round, float]:
    """The effects with an average of 0 among the rounds that configurations link."""
    group = {round_: round_ for round_ in effects}
    for members in configurations:
        joined = {group[round_] for round_, _ in members}
        first = next(iter(joined))
        group = {round_: first if of in joined else of for round_, of in group.items()}
    means = {
        of: statistics.fmean(effects[round_] for round_ in effects if group[round_] == of)
        for of in set(group.values())
    }
    return {round_: effect - means[group[round_]] for round_, effect in effects.items()}
