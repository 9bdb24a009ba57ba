"""Card of `own` data."""

from dataclasses import dataclass

from scalescope.catalog.traits import DataTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class Own(DataTraits):
    """What your own workload brings along."""

    ends = True
