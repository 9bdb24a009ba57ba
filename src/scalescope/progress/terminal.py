"""Progress at a terminal; elsewhere notes, and a line for each answer so far."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from scalescope.experiment.trial import Trial
from scalescope.progress.state import CampaignProgress
from scalescope.report.machine import placement_lines
from scalescope.report.render.terminal import console, show
from scalescope.report.section import Section
from scalescope.report.trials import explains_failure, failure_line, is_answer
from scalescope.results.printable import printable
from scalescope.results.ranks import RankPlacement
from scalescope.results.result import Result
from scalescope.studies.study import Interim
from scalescope.studies.watcher import Budget

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

_REFRESHES_PER_S = 2.0  # each takes a millisecond of a processor that ranks may need


class TerminalWatcher:
    """Shows notes and placements on standard output, and a live table on a terminal's standard error."""

    def __init__(
        self, *, every_placement: bool, verbose: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = console()
        self._every_placement = every_placement
        self._verbose = verbose
        self._placed: set[tuple[str, ...]] = set()
        self._progress = CampaignProgress(clock)
        self._answer: str | None = None  # so far; of a search the name of the best
        self._failed: set[str] = set()  # trial ids
        self.failures: list[str] = []  # that were printed
        self._live = self._display()

    def __enter__(self) -> "TerminalWatcher":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def noted(self, line: str) -> None:
        self._print(line)

    def shown(self, sections: tuple[Section, ...]) -> None:
        with self._page() as page:
            show(sections, page, verbose=self._verbose)

    def began(
        self, launches: Sequence[tuple[Trial, int]], finished: Sequence[Result], budget: Budget | None
    ) -> None:
        self._progress.begin(launches, finished, budget)

    def launching(self, trial: Trial, launch: int, *, label: str | None = None) -> None:
        self._progress.launching(trial, label)
        if trial.keeps_running and self._live is not None:
            self._live.stop()  # its own output follows
            self._live = None

    def placed(self, ranks: Sequence[RankPlacement]) -> None:
        """Print where the ranks are, once for each placement."""
        key = tuple(rank.line for rank in ranks)
        if key in self._placed or not (self._every_placement or self._verbose):
            return
        self._placed.add(key)
        for line in placement_lines(ranks):
            self._print(line)

    def advanced(self, fraction: float) -> None:
        self._progress.fraction = fraction

    def ended(self, result: Result) -> None:
        self._progress.ended(result)
        if result.status != "ok" and not is_answer(result) and not self._is_known(result):
            self.failures.append(failure_line(result))
            self._print(self.failures[-1])
        for note in result.notes:
            self._print(f"note: {note}")

    def _is_known(self, result: Result) -> bool:
        """Whether a launch of the same trial failed before, or the job that it explains."""
        is_known = result.trial_id in self._failed or explains_failure(result.trial, self._failed)
        self._failed.add(result.trial_id)
        return is_known

    def verdict(self, interim: Interim) -> None:
        """Show the answer so far in the live table; elsewhere a line for each new one, or each new best."""
        self._progress.interim = interim
        best = interim.best
        answer = interim.text if not interim.rows else None if best is None else best.name
        if answer is None or answer == self._answer:
            return
        self._answer = answer
        if self._live is not None and sys.stdout.isatty():
            return
        if best is None:
            self._print(f"So far: {interim.text}")
        else:
            from scalescope.progress.leaderboard import best_line

            self._print(best_line(best, self._progress.budget()))

    def _display(self) -> "Live | None":
        """The live table, where standard error is a terminal that can show one."""
        from rich.live import Live

        if sys.stderr is None or not sys.stderr.isatty():
            return None
        target = console(sys.stderr)
        if target.is_dumb_terminal:
            return None
        return Live(
            console=target,
            transient=True,
            refresh_per_second=_REFRESHES_PER_S,
            redirect_stdout=sys.stdout.isatty(),  # what goes to a file is not for the terminal
            get_renderable=lambda: self._drawn(target),
        )

    def _drawn(self, target: "Console") -> "Text":
        from rich.text import Text

        from scalescope.progress.table import draw

        try:
            return draw(self._progress, target.width, target.height)
        except Exception as error:  # a mistake in the display must not cost a measurement
            return Text(f"Progress cannot be shown: {error!r}")

    def _print(self, line: str) -> None:
        from rich.text import Text

        with self._page() as page:
            page.print(Text(printable(line)), soft_wrap=True)

    @contextlib.contextmanager
    def _page(self) -> "Iterator[Console]":
        """Where lines go: above the table where both share a terminal, or they would run into it.

        A pipe may end at that terminal too: the table is taken away before something is written to it, and
        comes back below.
        """
        if self._live is None or not self._live.is_started:
            yield self._out
        elif sys.stdout.isatty():
            yield self._live.console
        else:
            self._live.stop()
            try:
                yield self._out
            finally:
                self._live = self._display()  # one that was stopped would erase the lines above it
                self.__enter__()
