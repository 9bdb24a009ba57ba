"""Pauses of Python's garbage collector, counted by its own callbacks."""

import gc
import math
from collections import Counter, defaultdict

from scalescope import clocks
from scalescope.worker.process.position import Position


class GarbageWatch:
    """Counts collections between `begin` and `end`, and adds their pauses up by step."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._began: float | None = None
        self._collections: Counter[int] = Counter()
        self._longest_s = 0.0
        self._by_step_s: defaultdict[int, float] = defaultdict(float)

    def begin(self) -> None:
        self._began = None
        gc.callbacks.append(self._note)

    def end(self) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = clocks.perf_counter()
        elif self._began is not None:
            pause_s = clocks.perf_counter() - self._began
            self._began = None
            self._collections[info["generation"]] += 1
            self._longest_s = max(self._longest_s, pause_s)
            self._by_step_s[self._position.begun] += pause_s

    def pause_s(self, step: int) -> float:
        """In one step, by its number from 1 over all steps of the rank."""
        return self._by_step_s.get(step, 0.0)

    def counters(self) -> dict[str, float | int | str | None]:
        """Seconds in all collections, their number by generation, and the longest."""
        return {
            "gc/pause_s": math.fsum(self._by_step_s.values()),
            "gc/longest_s": self._longest_s,
            "gc/enabled": int(gc.isenabled()),
            **{f"gc/collections_{generation}": self._collections[generation] for generation in range(3)},
        }
