"""What follows a run while it is measured: a terminal, a log, a test."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Watcher
from scalescope.report.section import Section
from scalescope.results.result import Result
from scalescope.studies.study import Interim


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The time that a run may take, and what is left of it."""

    total_s: float
    left_s: float


class CampaignWatcher(Watcher, Protocol):
    """Informed of the progress of a campaign, besides what happens inside each launch."""

    def noted(self, line: str) -> None:
        """Something the person should know."""
        ...

    def shown(self, sections: tuple[Section, ...]) -> None:
        """Something worth reading before the measurement begins."""
        ...

    def began(
        self, launches: Sequence[tuple[Trial, int]], finished: Sequence[Result], budget: Budget | None
    ) -> None:
        """These launches are planned; those among `finished` are not made again.

        A study that decides on the way what to launch calls it again for every further part of its plan,
        which may be a single launch. Without a budget, `budget` is None.
        """
        ...

    def launching(self, trial: Trial, launch: int, *, label: str | None = None) -> None:
        """A launch begins; `label` is what it is for, in words, where its study says so."""
        ...

    def ended(self, result: Result) -> None: ...

    def verdict(self, interim: Interim) -> None:
        """The answer so far; it replaces an earlier one."""
        ...
