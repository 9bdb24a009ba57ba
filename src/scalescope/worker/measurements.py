"""Measurements: what a benchmark brings back from one rank."""

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Measurements:
    """Raw samples and single facts of one rank."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    counters: dict[str, float | int | str | None] = field(default_factory=dict)
