"""Card of `synthetic` data."""

from dataclasses import dataclass

from scalescope.catalog.traits import DataTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic(DataTraits):
    """Random samples of the shape the model wants; without a loader they wait on the device."""
