"""Which configurations of two runs are compared: equal ones, and of the rest variants of one job.

Variants differ in the same settings in every pair, so that it is clear which belong together.
"""

from collections.abc import Sequence, Set

from scalescope.analysis.configurations import Configuration
from scalescope.catalog.cards import all_settings
from scalescope.experiment.same_job import LENGTH, differing_settings, job_key
from scalescope.experiment.trial import Trial

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
