"""Pairs of configurations that were not measured with the same settings, but nearly so."""

from collections.abc import Sequence

from scalescope.analysis.comparison.runs import Pair, setting_differences
from scalescope.analysis.configurations import Configuration


def nearest_pairs(
    left: Sequence[Configuration], right: Sequence[Configuration], matched: Sequence[Pair]
) -> list[Pair]:
    """Each configuration without a partner and the one that differs least, where both choose each other."""
    taken = {id(config) for pair in matched for config in pair}
    rest = [[config for config in side if id(config) not in taken] for side in (left, right)]
    pairs = []
    for config in rest[0]:
        partner = _nearest(config, rest[1])
        if partner is not None and _nearest(partner, rest[0]) is config:
            pairs.append((config, partner))
    return pairs


def _nearest(config: Configuration, others: Sequence[Configuration]) -> Configuration | None:
    """The one other configuration with the fewest differences; None where several have as few."""
    counts = [len(setting_differences(config.trial, other.trial)) for other in others]
    least = min(counts, default=0)
    return others[counts.index(least)] if counts.count(least) == 1 else None
