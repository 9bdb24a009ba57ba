"""Progress for a person at a terminal; silence, but for what must be known, everywhere else."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from scalescope.experiment.trial import Trial
from scalescope.report.placement import placement_lines
from scalescope.report.section import Section
from scalescope.report.terminal import console, printable, show
from scalescope.report.trials import is_answer
from scalescope.results.result import Result

if TYPE_CHECKING:
    from rich.console import Console


class TerminalWatcher:
    """Shows notes and placements on standard output, a progress bar on a terminal's standard error."""

    def __init__(self, *, every_placement: bool, verbose: bool) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._out = console()
        self._every_placement = every_placement
        self._verbose = verbose
        self._placed: set[tuple[str, ...]] = set()
        self._most_ranks = 0
        self._done = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("launches, left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[best]}"),
            console=Console(stderr=True, highlight=False),
            transient=True,
            disable=not sys.stderr.isatty(),
            refresh_per_second=2,
        )
        self._task = self._bar.add_task("starting torch", total=None, best="")

    def __enter__(self) -> "TerminalWatcher":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def noted(self, line: str) -> None:
        self._print(line)

    def shown(self, sections: tuple[Section, ...]) -> None:
        show(sections, self._page(), verbose=self._verbose)

    def began(self, launches: int, done: int) -> None:
        self._done = done
        self._bar.update(self._task, total=launches, completed=done)

    def launching(self, trial: Trial, launch: int) -> None:
        self._bar.update(self._task, description=trial.label)

    def placed(self, lines: list[str], hosts: list[str]) -> None:
        """Print where the ranks are, once for each placement."""
        key = tuple(lines)
        if key in self._placed or not (self._every_placement or self._verbose):
            return
        self._placed.add(key)
        for line in placement_lines(lines, hosts):
            self._print(line)

    def advanced(self, fraction: float) -> None:
        self._bar.update(self._task, completed=self._done + fraction)

    def ended(self, result: Result) -> None:
        self._done += 1
        self._bar.update(self._task, completed=self._done)
        if result.status != "ok" and not is_answer(result):
            log = f" (log: {result.log})" if result.log else ""
            self._print(f"{result.status}: {result.reason}{log}")
        for note in result.notes:
            self._print(f"note: {note}")

    def verdict(self, text: str) -> None:
        self._bar.update(self._task, best=text)

    def _print(self, line: str) -> None:
        from rich.text import Text

        self._page().print(Text(printable(line)), soft_wrap=True)

    def _page(self) -> "Console":
        """Where lines go: above the bar when both share a terminal, or they would run into it."""
        return self._bar.console if not self._bar.disable and sys.stdout.isatty() else self._out
