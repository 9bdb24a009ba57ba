"""What torch.compile did: graph breaks, compilations and why they were repeated. Only this module knows where
torch keeps that, which is private to it: what it does not find is unknown."""

import contextlib
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import scalescope
from scalescope import clocks

GRAPH_BREAKS = "graph_breaks"
RECOMPILATIONS = "recompilations"
_UTILS = "torch._dynamo.utils"
_MOST_KEPT = 4096  # compilations; torch keeps 64 otherwise
_MOST_ROWS = 32
_LONGEST_REASON = 200
_NOT_THE_USERS = tuple(str(Path(package.__path__[0])) for package in (torch, scalescope))

Row = dict[str, float | int | str | None]
Interval = tuple[float, float]


class CompilationWatch:
    """Reads what torch compiled since it was made, and tells what of it fell between `begin` and `end`."""

    def __init__(self) -> None:
        self._made_s = clocks.time()
        self._windows: list[Interval] = []
        self._breaks_before = self._breaks_made = len(_breaks())
        self._breaks_inside = 0
        self._began_s = 0.0

    def begin(self) -> None:
        _keep_all_compilations()
        self._breaks_made = len(_breaks())
        self._began_s = clocks.time()

    def end(self) -> None:
        self._windows.append((self._began_s, clocks.time()))
        self._breaks_inside += len(_breaks()) - self._breaks_made

    def counters(self) -> dict[str, float | int | str | None]:
        """Empty where nothing was compiled."""
        with contextlib.suppress(Exception):  # private to torch
            return self._counters()
        return {}

    def tables(self) -> dict[str, list[Row]]:
        """Graph breaks by their line, and compilations that were repeated."""
        with contextlib.suppress(Exception):  # private to torch
            if self._compilations():
                return {GRAPH_BREAKS: self._graph_breaks(), RECOMPILATIONS: self._recompilations()}
        return {}

    def _counters(self) -> dict[str, float | int | str | None]:
        compilations = self._compilations()
        if not compilations:
            return {}
        inside = [entry for entry in compilations if self._is_inside(entry)]
        repeated = [entry for entry in compilations if _is_repeated(entry)]
        repeated_inside = [entry for entry in inside if _is_repeated(entry)]
        breaks = len(_breaks()) - self._breaks_before
        return {
            "compile/compilations_before": len(compilations) - len(inside),
            "compile/compilations_inside": len(inside),
            "compile/recompilations_before": len(repeated) - len(repeated_inside),
            "compile/recompilations_inside": len(repeated_inside),
            "compile/given_up": sum(bool(getattr(entry, "fail_type", None)) for entry in repeated),
            "compile/graph_breaks_before": breaks - self._breaks_inside,
            "compile/graph_breaks_inside": self._breaks_inside,
            "compile/inside_s": _covered_s([_interval(entry) for entry in inside]),
        }

    def _compilations(self) -> list[Any]:
        utils = _utils()
        entries = [] if utils is None else utils.get_compilation_metrics()
        return [entry for entry in entries if _interval(entry)[0] >= self._made_s]

    def _is_inside(self, entry: Any) -> bool:
        began_s, _ = _interval(entry)
        return any(begin <= began_s <= end for begin, end in self._windows)

    def _graph_breaks(self) -> list[Row]:
        sites = Counter(map(_site, _breaks()[self._breaks_before :]))
        return [
            {"reason": reason, "file": file, "line": line, "function": function, "count": count}
            for (reason, file, line, function), count in sites.most_common(_MOST_ROWS)
        ]

    def _recompilations(self) -> list[Row]:
        """The longest."""
        repeated = [entry for entry in self._compilations() if _is_repeated(entry)]
        longest = sorted(repeated, key=_duration_s, reverse=True)[:_MOST_ROWS]
        return [
            {
                "reason": _first_line(getattr(entry, "recompile_reason", None)),
                "function": str(entry.co_name or ""),
                "file": str(entry.co_filename or ""),
                "line": int(entry.co_firstlineno or 0),
                "in_window": int(self._is_inside(entry)),
                "time_s": _duration_s(entry),
            }
            for entry in longest
        ]


def _utils() -> ModuleType | None:
    """Where torch keeps these facts; None as long as nothing has loaded the compiler."""
    return sys.modules.get(_UTILS)


def _breaks() -> Sequence[Any]:
    """Every graph break so far, in the order in which torch met them."""
    return getattr(_utils(), "graph_break_reasons", None) or ()


def _keep_all_compilations() -> None:
    with contextlib.suppress(Exception):  # private to torch
        if (utils := _utils()) is not None:
            utils.set_compilation_metrics_limit(_MOST_KEPT)


def _interval(entry: Any) -> Interval:
    """When a compilation began and ended, in seconds since 1970."""
    return entry.start_time_us / 1e6, (entry.end_time_us or entry.start_time_us) / 1e6


def _duration_s(entry: Any) -> float:
    began_s, ended_s = _interval(entry)
    return ended_s - began_s


def _is_repeated(entry: Any) -> bool:
    """Whether the function had been compiled before, for other arguments."""
    return bool(getattr(entry, "recompile_reason", None) or getattr(entry, "cache_size", None))


def _covered_s(intervals: Iterable[Interval]) -> float:
    """The time in any of the intervals: a compilation may contain another."""
    total_s, until_s = 0.0, 0.0
    for began_s, ended_s in sorted(intervals):
        total_s += max(0.0, ended_s - max(began_s, until_s))
        until_s = max(until_s, ended_s)
    return total_s


def _site(entry: Any) -> tuple[str, str, int, str]:
    """The reason of a graph break, and the innermost line outside torch and scalescope, if there is any."""
    frames = [frame for frame in entry.user_stack if not frame.filename.startswith(_NOT_THE_USERS)]
    if not frames:
        return _first_line(entry.reason), "", 0, ""
    innermost = frames[-1]
    return _first_line(entry.reason), innermost.filename, int(innermost.lineno or 0), innermost.name


def _first_line(text: object) -> str:
    lines = str(text or "").strip().splitlines()
    return lines[0][:_LONGEST_REASON] if lines else ""
