"""Measurements: what a benchmark returns from one rank."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

Store = Callable[[int, "Measurements"], None]  # of a phase, by its number


@dataclass(kw_only=True)
class Measurements:
    """Raw samples and single values of one rank."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    counters: dict[str, float | int | str | None] = field(default_factory=dict)
    tables: dict[str, list[dict[str, float | int | str | None]]] = field(default_factory=dict)
    # Writes the recorded trace to a path; returns counts of what the file holds.
    write_trace: Callable[[Path], dict[str, int]] | None = None
    # What follows on the window once that is stored; ends the loop.
    go_on: Callable[[Store], None] | None = None
