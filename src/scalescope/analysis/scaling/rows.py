"""Scaling: speedup, efficiency, communication and what Amdahl's law makes of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.scaling.by_ablation import AGREES, waterfall_of
from scalescope.analysis.scaling.communication import communication_cost
from scalescope.analysis.scaling.waterfall import COMMUNICATION, Waterfall, scaled
from scalescope.analysis.statistics import Estimate, ratio_of_logs
from scalescope.experiment.explanations import (
    BATCH,
    SPREAD,
    at_per_rank_batch,
    job_key,
    strategy_settings,
    with_preloaded_input,
    without_communication,
)
from scalescope.experiment.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """One configuration against the smallest world size of its kind."""

    configuration: Configuration
    baseline_ranks: int
    speedup: Estimate
    efficiency: Estimate
    wrapped: Configuration | None  # DDP on one rank: the other baseline
    efficiency_of_wrapped: Estimate | None
    communication_s: Estimate | None
    waterfall: Waterfall | None = None
    had_other_load: bool = False  # during its launches, or those of what it is compared with

    @property
    def trial(self) -> Trial:
        return self.configuration.trial

    @property
    def ranks(self) -> int:
        return self.trial.world_size

    @property
    def batch(self) -> int:
        return self.trial.given_batch_size

    @property
    def is_baseline(self) -> bool:
        return self.ranks == self.baseline_ranks

    @property
    def delivered(self) -> float | None:
        """Ranks' worth of speed that all ranks deliver; None without a waterfall."""
        return None if self.waterfall is None else self.waterfall.delivered

    @property
    def lost_by_communication(self) -> float | None:
        """Ranks' worth of speed that communication costs; None where it was not measured."""
        term = None if self.waterfall is None else self.waterfall.term(COMMUNICATION)
        return None if term is None or term.lost is None else term.lost.value

    @property
    def communication_fraction(self) -> float | None:
        if self.communication_s is None:
            return None
        return self.communication_s.value / self.configuration.step_time_s.value

    @property
    def amdahl_fraction(self) -> float | None:
        """The serial share Amdahl's law needs for this speedup (Karp and Flatt 1990).

        The law is about fixed total work. Only against one rank; below 0 the speedup was more than linear,
        above 1 the ranks were slower than one: it covers neither.
        """
        if self.baseline_ranks != 1 or self.is_baseline:
            return None
        ranks = self.ranks
        return (1.0 / self.speedup.value - 1.0 / ranks) / (1.0 - 1.0 / ranks)

    @property
    def serial_fraction(self) -> float | None:
        """The serial share by the law that fits: Amdahl's when strong, Gustafson's (1988) when weak."""
        amdahl = self.amdahl_fraction
        if amdahl is None or self.trial.mode == "strong":
            return amdahl
        return (self.ranks - self.speedup.value) / (self.ranks - 1.0)

    @property
    def reading(self) -> str:
        """The result in a word or two."""
        if self.is_baseline:
            return "baseline"
        if self.trial.oversubscribe:
            return "shared GPU"
        if self.speedup.value < 1.0:
            return "negative scaling"
        for least, word in ((0.9, "excellent"), (0.8, "good"), (0.5, "fair")):
            if self.efficiency.value > least:
                return "good" if self.had_other_load and word == "excellent" else word
        return "poor"


def scaling_rows(configurations: Iterable[Configuration]) -> tuple[ScalingRow, ...]:
    """All rows that have a baseline, ordered by what was varied and then by ranks."""
    all_of_them = list(configurations)
    measured = _measured(all_of_them)
    # What was launched under another load explains nothing.
    known, asked = _by_trial([c for c in all_of_them if c.is_comparable]), _by_trial(measured)
    rows = []
    for same_kind in _kinds(measured):
        if _why_not_comparable(same_kind) is not None:
            continue
        for configuration in same_kind:
            if not _is_wrapped_single(configuration, same_kind) and not _has_other_load(
                configuration, same_kind
            ):
                rows.append(_row(configuration, same_kind, asked, known))
    places = {id(configuration): number for number, configuration in enumerate(measured)}
    rows.sort(key=lambda row: places[id(row.configuration)])  # among equals, what was measured first
    return tuple(sorted(rows, key=lambda row: (_kind_order(row.trial), row.batch, row.ranks)))


def _measured(configurations: Sequence[Configuration]) -> list[Configuration]:
    """What rows are about: not what only explains other rows."""
    shares = _shares(configurations)
    return [
        configuration
        for configuration in configurations
        if not configuration.trial.is_ablation
        and (configuration.trial.world_size > 1 or _global_batch(configuration) not in shares)
    ]


def _kinds(measured: Iterable[Configuration]) -> list[list[Configuration]]:
    kinds: dict[str, list[Configuration]] = {}
    for configuration in measured:
        kinds.setdefault(_kind(configuration.trial), []).append(configuration)
    return list(kinds.values())


UNKNOWN_SAMPLES: Final = "unknown samples"
OTHER_SAMPLES: Final = "other samples"  # neither as many per rank on all world sizes, nor in total
OTHER_LOAD: Final = "other load"  # in every round than during the launch it would be held against
NotComparable = Literal["unknown samples", "other samples", "other load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """A job on several numbers of ranks whose speeds say nothing about scaling."""

    reason: NotComparable
    members: tuple[Configuration, ...]  # by number of ranks


def not_compared(configurations: Iterable[Configuration]) -> tuple[NotCompared, ...]:
    """The jobs without rows, or not with all of them, and why."""
    found = []
    for same_kind in _kinds(_measured(list(configurations))):
        reason = _why_not_comparable(same_kind)
        left_out = same_kind if reason else [c for c in same_kind if _has_other_load(c, same_kind)]
        if left_out:
            members = tuple(sorted(left_out, key=lambda member: member.trial.world_size))
            found.append(NotCompared(reason=reason or OTHER_LOAD, members=members))
    return tuple(found)


def _has_other_load(configuration: Configuration, same_kind: list[Configuration]) -> bool:
    """Whether no launch was made under the same load as one of the baseline in the same round."""
    baseline = _baseline(configuration.trial, same_kind)
    both = configuration.is_comparable and baseline.is_comparable
    return configuration is not baseline and not both


def _why_not_comparable(same_kind: Sequence[Configuration]) -> NotComparable | None:
    """Why there are no rows of a command; None where there are."""
    commands = [configuration for configuration in same_kind if configuration.trial.is_command]
    samples = [configuration.samples_per_step for configuration in commands]
    known = [count for count in samples if count is not None]
    if len(known) < len(commands) or not all(member.trial.has_known_batch for member in commands):
        return UNKNOWN_SAMPLES
    per_rank = [count / member.trial.world_size for count, member in zip(known, commands, strict=True)]
    return None if _agree(per_rank) or _agree(known) else OTHER_SAMPLES


def _agree(counts: Sequence[float]) -> bool:
    return not counts or max(counts) - min(counts) <= AGREES * max(counts)


def _by_trial(configurations: list[Configuration]) -> dict[str, Configuration]:
    return {configuration.trial.trial_id: configuration for configuration in configurations}


def _shares(configurations: Sequence[Configuration]) -> set[int | None]:
    """Parts of global batches that one rank was measured with only to explain other rows."""
    several = [
        configuration
        for configuration in configurations
        if configuration.trial.world_size > 1 and _global_batch(configuration) is not None
    ]
    parts = {at_per_rank_batch(configuration.trial).global_batch_size for configuration in several}
    return parts - {_global_batch(configuration) for configuration in several}


def _global_batch(configuration: Configuration) -> int | None:
    return configuration.trial.global_batch_size


def _row(
    configuration: Configuration,
    same_kind: list[Configuration],
    asked: dict[str, Configuration],
    known: dict[str, Configuration],
) -> ScalingRow:
    baseline = _baseline(configuration.trial, same_kind)
    speedup = ratio_of_logs(configuration.log_rates, baseline.log_rates)
    share = baseline.trial.world_size / configuration.trial.world_size
    wrapped = _wrapped_one_rank(configuration, same_kind, asked)
    without_comm = without_communication(with_preloaded_input(configuration.trial))
    uncoupled = None if without_comm is None else known.get(without_comm.trial_id)
    fed = known.get(with_preloaded_input(configuration.trial).trial_id)
    is_baseline = configuration is baseline
    waterfall = waterfall_of(configuration, known)
    communication = None if waterfall is None else waterfall.term(COMMUNICATION)
    return ScalingRow(
        configuration=configuration,
        baseline_ranks=baseline.trial.world_size,
        speedup=Estimate(1.0) if is_baseline else speedup,
        efficiency=Estimate(1.0) if is_baseline else scaled(speedup, share),
        wrapped=wrapped,
        efficiency_of_wrapped=_against_wrapped(configuration, wrapped),
        communication_s=_communication(fed, uncoupled) if communication is None else communication.time_s,
        waterfall=waterfall,
        had_other_load=configuration.had_other_load or baseline.had_other_load,
    )


def _wrapped_one_rank(
    configuration: Configuration, same_kind: list[Configuration], asked: dict[str, Configuration]
) -> Configuration | None:
    """DDP on one rank with the same settings; beside a plain one-rank run, any of its kind."""
    if configuration.trial.is_command:
        return None
    if configuration.trial.is_wrapped:
        return asked.get(configuration.trial.on_one_rank().trial_id)
    others = (other for other in same_kind if other is not configuration)
    return next((other for other in others if other.trial.world_size == 1), None)


def _against_wrapped(configuration: Configuration, wrapped: Configuration | None) -> Estimate | None:
    if wrapped is None or wrapped is configuration or not configuration.trial.is_wrapped:
        return None
    return scaled(
        ratio_of_logs(configuration.log_rates, wrapped.log_rates), 1.0 / configuration.trial.world_size
    )


def _communication(fed: Configuration | None, uncoupled: Configuration | None) -> Estimate | None:
    """What communication adds, where there is no waterfall: by the same definition."""
    if fed is None or uncoupled is None:
        return None
    return communication_cost(fed, uncoupled).communication_s


def _is_wrapped_single(configuration: Configuration, same_kind: list[Configuration]) -> bool:
    """Whether this is DDP on one rank beside a plain run: a column of the others, not a row."""
    if configuration.trial.world_size > 1 or not configuration.trial.is_wrapped:
        return False
    return any(not other.trial.is_wrapped for other in same_kind)


def _baseline(trial: Trial, same_kind: list[Configuration]) -> Configuration:
    """The smallest world size; the plain run before the wrapped one, then the trial's own settings."""

    def distance(configuration: Configuration) -> tuple[int, bool, bool]:
        other = configuration.trial
        moved = trial.replace(
            world_size=other.world_size, oversubscribe=other.oversubscribe, stand_in=other.stand_in
        )
        return other.world_size, other.is_wrapped, moved.trial_id != other.trial_id

    return min(same_kind, key=distance)


def _kind(trial: Trial) -> str:
    """What must be equal for two trials to be one job on different numbers of ranks."""
    return job_key(trial, ignoring=SPREAD | strategy_settings())


def _kind_order(trial: Trial) -> str:
    return job_key(trial, ignoring=SPREAD | strategy_settings() | BATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The smallest batch at which the largest world size keeps a share of its ideal speed."""

    share: float
    batch: int | None
    certain: bool


def smallest_batch_reaching(rows: Iterable[ScalingRow], share: float) -> Reach:
    """Look among the rows of the largest world size; `certain` when the whole interval is above."""
    candidates = [row for row in rows if not row.is_baseline]
    if not candidates:
        return Reach(share=share, batch=None, certain=False)
    most = max(row.ranks for row in candidates)
    for row in sorted(candidates, key=lambda row: row.batch):
        if row.ranks == most and row.efficiency.value >= share:
            low = row.efficiency.low
            return Reach(share=share, batch=row.batch, certain=low is not None and low >= share)
    return Reach(share=share, batch=None, certain=False)
