"""Locates the lines of code at which the host waits for the GPU, by torch's own warnings.

The mode reports what torch's operations wait for; it does not see calls of C++ extensions,
torch.cuda.synchronize, collectives, or memory that is given back to the driver.
"""

import linecache
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import scalescope
from scalescope.worker.trace.line_times import Line

_LONGEST_CODE = 200
_MOST_SITES = 20
_TORCH = Path(torch.__file__).parent
_SCALESCOPE = Path(scalescope.__file__).parent
_ATTACHED = _SCALESCOPE / "worker" / "attach"  # stands between a script and torch, and does not wait itself
_WARNINGS = Path(warnings.__file__)


@dataclass(kw_only=True)
class Synchronizations:
    """Waits for the GPU by the line of code that makes them."""

    sites: Counter[tuple[str, int, str]] = field(default_factory=Counter)  # (file, line, function)
    can_locate: bool = False  # whether torch reports waits at all
    times_s: Mapping[Line, float] = field(default_factory=dict)  # of the host, all steps together

    def add(self, frames: traceback.StackSummary) -> None:
        """Count a wait for the innermost frame outside torch and outside the code that measures."""
        passing = (_TORCH, _ATTACHED, _WARNINGS)
        outside = [f for f in frames if not any(_is_inside(f.filename, folder) for folder in passing)]
        users = [frame for frame in outside if not _is_inside(frame.filename, _SCALESCOPE)]
        if not outside or not users or _is_inside(outside[-1].filename, _SCALESCOPE):
            return  # the measuring code itself: it copies batches
        frame = users[-1]
        self.sites[(frame.filename, frame.lineno or 0, frame.name)] += 1

    @property
    def lines(self) -> set[Line]:
        return {(file, line) for file, line, _ in self.sites}

    def rows(self, steps: int) -> list[dict[str, float | int | str | None]]:
        """The lines with their waits per step, the most frequent first."""
        return [
            {
                "file": _shown_path(file),
                "line": line,
                "function": function,
                "code": linecache.getline(file, line).strip()[:_LONGEST_CODE],
                "operation": "",
                "per_step": count / steps,
                "time_s": self.times_s[(file, line)] / steps if (file, line) in self.times_s else None,
                "from_trace": False,
            }
            for (file, line, function), count in self.sites.most_common(_MOST_SITES)
        ]


def _is_inside(file: str, folder: Path) -> bool:
    return Path(file).is_relative_to(folder)


def _shown_path(file: str) -> str:
    """Relative to the working folder where it is inside."""
    path = Path(file)
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


@contextmanager
def located_synchronizations(device: torch.device) -> Iterator[Synchronizations]:
    """Collects waits for the GPU inside the block."""
    waits = Synchronizations()
    before = torch.cuda.get_sync_debug_mode()
    probe = torch.ones(1, device=device)
    texts: set[str] = set()

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        if not waits.can_locate:
            texts.add(str(message))
        elif str(message) in texts:
            waits.add(traceback.extract_stack(sys._getframe(1)))

    with _every_warning_to(note):
        torch.cuda.set_sync_debug_mode("warn")
        try:
            probe.item()  # a wait that is known, to learn what such a warning says
            waits.can_locate = bool(texts)
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode(before)


@contextmanager
def _every_warning_to(note: Callable[..., None]) -> Iterator[None]:
    """Calls `note` for each warning, however often the same line makes it."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("always")
        warnings.showwarning = note
        yield
