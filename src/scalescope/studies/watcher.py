"""What follows a run while it is measured: a terminal, a log, a test."""

from collections.abc import Sequence
from typing import Protocol

from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Watcher
from scalescope.report.section import Section
from scalescope.results.result import Result


class CampaignWatcher(Watcher, Protocol):
    """Informed of the progress of a campaign, besides what happens inside each launch."""

    def noted(self, line: str) -> None:
        """Something the person should know."""
        ...

    def shown(self, sections: tuple[Section, ...]) -> None:
        """Something worth reading before the measurement begins."""
        ...

    def began(
        self, launches: Sequence[tuple[Trial, int]], finished: Sequence[Result], budget_s: float | None
    ) -> None:
        """These launches are planned; those among `finished` are not made again.

        A study that decides on the way what to launch calls it again for every further part of its plan.
        `budget_s` is the time that may still be spent.
        """
        ...

    def launching(self, trial: Trial, launch: int) -> None: ...

    def ended(self, result: Result) -> None: ...

    def verdict(self, text: str) -> None:
        """The answer so far; it replaces an earlier one."""
        ...
