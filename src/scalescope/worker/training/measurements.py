"""Measurements: what a benchmark brings back from one rank."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(kw_only=True)
class Measurements:
    """Raw samples and single facts of one rank."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    counters: dict[str, float | int | str | None] = field(default_factory=dict)
    # Writes a recorded trace where it is told to, and says what the file holds.
    write_trace: Callable[[Path], dict[str, int]] | None = None
