"""Which trials of two runs belong together, and how they differ."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from scalescope.analysis.collectives import CollectiveRow, collective_rows
from scalescope.analysis.configurations import STEPS, Configuration, comparable_log_rates, configurations
from scalescope.analysis.run_spread import RunSpread
from scalescope.analysis.statistics import Estimate, mean_of_logs
from scalescope.analysis.verdicts import (
    NO_SPREAD,
    SLOWER,
    Comparing,
    Judgement,
    Remedy,
    Verdict,
    comparisons_of,
    judge_all,
)
from scalescope.analysis.verdicts import Pair as LogRates
from scalescope.catalog.cards import all_settings
from scalescope.experiment.explanations import LENGTH, NO_INFLUENCE, changes_work, differing_settings, job_key
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result

# ---- Which configurations of two runs are compared: equal ones, and of the rest variants of one job


Pair = tuple[Configuration, Configuration]
SettingDifference = tuple[str, object, object]  # setting, here, there

# What `auto` makes of a machine: another machine may have it otherwise and still do the same job.
_OF_THE_MACHINE = frozenset(("device", "backend", "threads_per_rank"))


def matched_pairs(
    left: Sequence[Configuration], right: Sequence[Configuration], *, any_hardware: bool = False
) -> list[Pair]:
    """By identity; then without how long they measured; then, where machines may differ, without what
    follows from the machine: each only where the match is unmistakable."""
    by_id = {config.trial.trial_id: config for config in left}
    pairs = [(by_id[config.trial.trial_id], config) for config in right if config.trial.trial_id in by_id]
    pairs += _pairs_without(LENGTH, left, right, pairs)
    if any_hardware:
        pairs += _pairs_without(LENGTH | _OF_THE_MACHINE, left, right, pairs)
    return pairs


def variant_pairs(
    left: Sequence[Configuration], right: Sequence[Configuration], matched: Sequence[Pair]
) -> list[Pair]:
    """Pairs of what has no equal in the other run: on as many ranks, and the same but for a few settings,
    which are the same ones in every pair; where that leaves two possible partners, there is no pair.

    Numbers of ranks may differ only where the runs have nothing else to compare.
    """
    rest = _without_partner(left, right, matched)
    pairs = _most_pairs(rest, matched, same_ranks=True)
    return pairs if pairs or matched else _most_pairs(rest, matched, same_ranks=False)


def _most_pairs(
    rest: tuple[list[Configuration], list[Configuration]], matched: Sequence[Pair], *, same_ranks: bool
) -> list[Pair]:
    """The pairs by the settings that give most of them; of several the fewest settings."""
    differing = {
        differing_settings(before.trial, after.trial) | LENGTH
        for before in rest[0]
        for after in rest[1]
        if not same_ranks or before.trial.world_size == after.trial.world_size
    }
    fewest_first = sorted(differing, key=lambda names: (len(names), sorted(names)))
    return max((_pairs_without(names, *rest, matched) for names in fewest_first), key=len, default=[])


def _pairs_without(
    ignored: Set[str], left: Sequence[Configuration], right: Sequence[Configuration], pairs: Sequence[Pair]
) -> list[Pair]:
    """Pairs of what is not matched yet, by all settings but the ignored ones."""
    rest = _without_partner(left, right, pairs)
    old_jobs, new_jobs = ([job_key(config.trial, ignoring=ignored) for config in side] for side in rest)
    return [
        (rest[0][old_jobs.index(job)], after)
        for job, after in zip(new_jobs, rest[1], strict=True)
        if old_jobs.count(job) == new_jobs.count(job) == 1
    ]


def _without_partner(
    left: Sequence[Configuration], right: Sequence[Configuration], pairs: Sequence[Pair]
) -> tuple[list[Configuration], list[Configuration]]:
    matched = {config.trial.trial_id for pair in pairs for config in pair}
    before, after = (
        [config for config in side if config.trial.trial_id not in matched] for side in (left, right)
    )
    return before, after


def setting_differences(trial: Trial, other: Trial) -> tuple[SettingDifference, ...]:
    """All settings that make two trials different ones."""
    here, there = trial.identity, other.identity
    return tuple(
        (name, here.get(name), there.get(name))
        for name in sorted(here.keys() | there.keys())
        if _value(trial, name) != _value(other, name)
    )


def job_differences(trial: Trial, other: Trial) -> tuple[SettingDifference, ...]:
    """The settings that make two trials different jobs: not how long they measured, nor from which folder
    they were started. That one rank needs no strategy follows from the number of ranks."""
    names = differing_settings(trial, other) - LENGTH
    if trial.world_size != other.world_size and not (trial.is_wrapped and other.is_wrapped):
        names -= {"strategy"}
    return tuple(difference for difference in setting_differences(trial, other) if difference[0] in names)


def _value(trial: Trial, name: str) -> object:
    """A setting's value, by default where a trial has none."""
    known = all_settings(trial.benchmark).get(name)
    return trial.settings.get(name) if known is None else trial.value(known[0])


# ---- Two runs compared: what became slower, what is inconclusive, and how fast variants of one job are


# What two configurations that are compared do: the same, the same on another number of ranks, or two jobs.
Work = Literal["same", "other ranks", "different"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedConfig:
    """One configuration before and after, or two variants of one job."""

    before: Configuration
    after: Configuration
    speedup: Estimate  # after ÷ before, of samples per second
    p_value: float | None
    smallest_detectable: float | None  # see `smallest_effect`
    verdict: Verdict
    remedy: Remedy | None  # of what is inconclusive
    comparing: Comparing

    @property
    def threshold(self) -> float:
        return self.comparing.threshold

    @property
    def trial(self) -> Trial:
        return self.after.trial

    @property
    def differs(self) -> tuple[SettingDifference, ...]:
        """The settings in which two variants differ."""
        return job_differences(self.before.trial, self.after.trial)

    @property
    def work(self) -> Work:
        """What a lever or the place of ranks changes is the same work; what changes the job is not."""
        before, after = self.before.trial, self.after.trial
        names = {name for name, _, _ in self.differs} - NO_INFLUENCE
        if any(changes_work(before, name) for name in names):
            return "different"
        if before.world_size != after.world_size:
            return "other ranks"
        return "same" if before.samples_per_step == after.samples_per_step else "different"

    @property
    def per_rank(self) -> float:
        """The speedup of one rank."""
        return self.speedup.value * self.before.trial.world_size / self.after.trial.world_size

    @property
    def unit(self) -> str:
        """What both count; steps where they count different things."""
        return self.after.unit if self.before.unit == self.after.unit else STEPS

    @property
    def rates(self) -> tuple[float, float]:
        """`unit` per second, before and after."""
        before, after = comparable_log_rates(self.before, self.after)
        return mean_of_logs(before).value, mean_of_logs(after).value

    @property
    def change(self) -> float:
        """Of samples per second: -0.08 is 8 % fewer."""
        return self.speedup.value - 1.0

    @property
    def regressed(self) -> bool:
        """Surely slower at the same work, and by more than is allowed."""
        return self.work == "same" and self.verdict == SLOWER and self.change < -self.threshold

    @property
    def launches(self) -> tuple[int, int]:
        return len(self.before.launches), len(self.after.launches)

    @property
    def too_few(self) -> bool:
        return min(self.launches) < 2

    @property
    def windows_s(self) -> tuple[float, float]:
        """How long launches measured before and after, in the median."""
        return self.before.window_s, self.after.window_s

    @property
    def machine_change(self) -> float | None:
        """How much faster a bare matrix product ran next to it; None where it was not measured."""
        before, after = self.before.matmul_flops_per_s, self.after.matmul_flops_per_s
        return None if before is None or after is None else after / before - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """A configuration that only one of the runs has, and how the nearest of the other run differs."""

    trial: Trial
    nearest: tuple[tuple[str, object, object], ...]  # (setting, here, there); empty where there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A configuration that worked before and did not now."""

    trial: Trial
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePair:
    """One collective at one size before and after; shown, not judged: often there is one launch."""

    before: CollectiveRow
    after: CollectiveRow

    @property
    def change(self) -> float:
        """Of the bus bandwidth, by mean times."""
        return self.before.time_s / self.after.time_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """The configurations of two runs, compared."""

    threshold: float
    judged: tuple[ComparedConfig, ...]
    failed: tuple[Failed, ...]
    only_before: tuple[Unmatched, ...]
    only_after: tuple[Unmatched, ...]
    collectives: tuple[CollectivePair, ...]
    spread: RunSpread = NO_SPREAD  # what runs differ by themselves; none inside one run

    @property
    def same_work(self) -> tuple[ComparedConfig, ...]:
        """What is held to the threshold: speeds of other work, or of more ranks, are not regressions."""
        return tuple(config for config in self.judged if config.work == "same")

    @property
    def other_work(self) -> tuple[ComparedConfig, ...]:
        return tuple(config for config in self.judged if config.work != "same")

    @property
    def regressions(self) -> tuple[ComparedConfig, ...]:
        return tuple(config for config in self.judged if config.regressed)

    @property
    def gate_missed(self) -> bool:
        """What fails now delivers nothing at all, which is not a smaller loss than a few percent."""
        return bool(self.regressions or self.failed)

    @property
    def has_nothing_in_common(self) -> bool:
        """Collectives alone are not a comparison where training was measured: no gate may pass by them."""
        training = self.judged or self.failed
        return not training and not (self.collectives and not self.only_before and not self.only_after)

    def with_verdict(self, *verdicts: Verdict) -> tuple[ComparedConfig, ...]:
        """Of the same work."""
        return tuple(config for config in self.same_work if config.verdict in verdicts)


def compare_runs(
    before: Iterable[Result],
    after: Iterable[Result],
    threshold: float,
    *,
    any_hardware: bool = False,
    spread: RunSpread = NO_SPREAD,
) -> RunComparison:
    """Pair the configurations of two runs and judge every pair.

    With `any_hardware`, settings that follow from the machine may differ. `spread` is the run-to-run
    variation.
    """
    old, new = tuple(before), tuple(after)
    left, right = full_configurations(old), full_configurations(new)
    failed = _failed(left, right, new)
    gone = {config.trial.trial_id for config in failed}
    pairs = matched_pairs(left, right, any_hardware=any_hardware)
    working = [config for config in left if config.trial.trial_id not in gone]
    variants = variant_pairs(working, right, pairs)
    matched = {config.trial.trial_id for pair in (*pairs, *variants) for config in pair}
    alone = [config for config in left if config.trial.trial_id not in matched | gone]
    fresh = [config for config in right if config.trial.trial_id not in matched]
    return RunComparison(
        threshold=threshold,
        judged=(
            *judged_pairs(sorted(pairs, key=_place), threshold, spread),
            *judged_pairs(sorted(variants, key=_place), threshold, spread),
        ),
        failed=failed,
        only_before=tuple(_alone(config, fresh or right) for config in alone),
        only_after=tuple(_alone(config, alone or left) for config in fresh),
        collectives=_collectives(old, new),
        spread=spread,
    )


def full_configurations(results: Iterable[Result]) -> list[Configuration]:
    """Training as it was asked for; what only explains it is not compared."""
    return [configuration for configuration in configurations(results) if not configuration.trial.is_ablation]


def _place(pair: Pair) -> tuple[int, int, str]:
    """Where a pair stands in a list: few ranks first, then small batches."""
    trial = pair[1].trial
    return trial.world_size, trial.samples_per_step, trial.label


def judged_pairs(
    pairs: Sequence[Pair], threshold: float, spread: RunSpread | None = None
) -> tuple[ComparedConfig, ...]:
    """All verdicts; the more configurations, the more sure each claim must be.

    `spread` is the run-to-run variation; None if both sides are from one run.
    """
    samples = [comparable_log_rates(after, before) for before, after in pairs]
    rates: list[LogRates] = list(samples)
    if spread is not None:  # launches of two runs were not made next to each other
        rates = [
            (after.as_measured(new), before.as_measured(old))
            for (before, after), (new, old) in zip(pairs, samples, strict=True)
        ]
    spread = spread or NO_SPREAD
    comparing = Comparing(threshold, comparisons_of(rates))
    return tuple(
        _judged(pair, judgement, comparing)
        for pair, judgement in zip(pairs, judge_all(rates, threshold, spread), strict=True)
    )


def _judged(pair: Pair, judgement: Judgement, comparing: Comparing) -> ComparedConfig:
    before, after = pair
    return ComparedConfig(
        before=before,
        after=after,
        speedup=judgement.speedup,
        p_value=judgement.p_value,
        smallest_detectable=judgement.smallest_detectable,
        verdict=judgement.verdict,
        remedy=judgement.remedy,
        comparing=comparing,
    )


def _failed(
    left: list[Configuration], right: list[Configuration], new: Sequence[Result]
) -> tuple[Failed, ...]:
    """Configurations of the old run whose launches in the new run all failed."""
    worked = {job_key(configuration.trial, ignoring=LENGTH) for configuration in right}
    reasons: dict[str, str] = {}
    for result in new:
        if result.status != "ok" and result.trial.is_training:
            reasons[job_key(result.trial, ignoring=LENGTH)] = result.reason or result.status
    return tuple(
        Failed(trial=configuration.trial, reason=reasons[key])
        for configuration in left
        if (key := job_key(configuration.trial, ignoring=LENGTH)) in reasons.keys() - worked
    )


def _alone(configuration: Configuration, others: Sequence[Configuration]) -> Unmatched:
    differences = [setting_differences(configuration.trial, other.trial) for other in others]
    return Unmatched(trial=configuration.trial, nearest=min(differences, key=len, default=()))


def _collectives(old: Iterable[Result], new: Iterable[Result]) -> tuple[CollectivePair, ...]:
    def key_of(row: CollectiveRow) -> tuple[object, ...]:
        kind = row.collective, row.dtype, row.in_place, row.size_bytes
        return *kind, row.ranks, row.reach, row.backend, row.link, row.split_gpu

    before = {key_of(row): row for row in collective_rows(old)}
    rows = [row for row in collective_rows(new) if key_of(row) in before and row.size_bytes > 0]
    return tuple(CollectivePair(before=before[key_of(row)], after=row) for row in rows)
