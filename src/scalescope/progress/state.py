"""How far a campaign is, as data: one row per trial, the answer so far, and the time left."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from scalescope.analysis.durations import LaunchDurations
from scalescope.experiment.trial import Trial
from scalescope.report.training.launch_figures import LaunchFigures, figures_of
from scalescope.report.trials import is_answer
from scalescope.report.varied import disambiguate
from scalescope.results.result import Result, Status
from scalescope.studies.campaign import TRIES_BEFORE_GIVING_UP, failure_weight
from scalescope.studies.study import Interim
from scalescope.studies.watcher import Budget

RowState = Literal["waiting", "running"] | Status


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial of the plan and what its launches gave."""

    trial: Trial
    label: str
    planned: int
    done: int
    state: RowState
    is_expected: bool = True  # False for a failure that is not an answer in itself
    is_given_up: bool = False
    figures: tuple[LaunchFigures, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLeft:
    """An estimate of the seconds left, or a bound where no more is known."""

    seconds: float
    bound: Literal["about", "at least", "at most"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _EndedLaunch:
    """What is kept of a launch that ended."""

    status: Status
    weight: int
    is_expected: bool
    figures: LaunchFigures | None


class CampaignProgress:
    """Follows a campaign; a display may read it from another thread at any time.

    What the display reads is replaced as a whole, never changed in place.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._planned: dict[str, set[int]] = {}
        self._ended: dict[str, dict[int, _EndedLaunch]] = {}
        self._durations = LaunchDurations()
        self._is_adaptive = False
        self._is_labelled = False  # launches come with what they are for
        self._deadline: float | None = None
        self._budget_s: float | None = None
        self._launched = self._started
        self._current_s: float | None = None  # what the running launch takes, where that was learnt
        self._rest_s: float | None = None  # what the launches after it take
        self.running: str | None = None  # the id of the trial that is being launched
        self.activity: str | None = None  # the latest launch in words, until the next one begins
        self.fraction = 0.0  # of the running launch
        self.rows: tuple[TrialRow, ...] = ()
        self.interim: Interim | None = None

    def begin(
        self, launches: Sequence[tuple[Trial, int]], finished: Sequence[Result], budget: Budget | None
    ) -> None:
        """Add launches to the plan, and what is known of them from before."""
        added = [launch for trial, launch in launches if launch not in self._planned.get(trial.trial_id, ())]
        self._is_adaptive |= not launches or bool(self._planned and added)
        self._deadline = None if budget is None else self._clock() + budget.left_s
        self._budget_s = None if budget is None else budget.total_s
        for result in finished:
            if result.launch not in self._ended.get(result.trial_id, {}):
                self._remember(result)
        trials = {row.trial.trial_id: row.trial for row in self.rows}
        fresh = {trial.trial_id: trial for trial, _ in launches if trial.trial_id not in trials}
        for trial, launch in launches:
            self._planned.setdefault(trial.trial_id, set()).add(launch)
        ordered = (*trials.values(), *sorted(fresh.values(), key=_reading_order))
        self.rows = tuple(
            self._row(trial, label) for trial, label in zip(ordered, _labels(ordered), strict=True)
        )
        self._count_time()

    def launching(self, trial: Trial, label: str | None = None) -> None:
        self._launched, self.fraction = self._clock(), 0.0
        self._is_labelled |= label is not None
        self.activity = label or f"measuring {self._label_of(trial)}"
        before, self.running = self.running, trial.trial_id
        self._refresh(before, trial.trial_id)

    def ended(self, result: Result) -> None:
        self._remember(result)
        before, self.running = self.running, None
        self._refresh(before, result.trial_id)

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started

    @property
    def is_search(self) -> bool:
        """Whether what was tried is to be shown, rather than what is planned."""
        has_rows = self.interim is not None and bool(self.interim.rows)
        return has_rows or (self._is_adaptive and self._is_labelled)

    @property
    def launches(self) -> tuple[int, int | None]:
        """How many launches are done, and how many are planned; None where that is decided on the way."""
        done, planned = sum(row.done for row in self.rows), sum(row.planned for row in self.rows)
        return done, None if self._is_adaptive else planned

    def budget(self) -> Budget | None:
        """The budget and what is left of it now; None without one."""
        if self._budget_s is None or self._deadline is None:
            return None
        return Budget(total_s=self._budget_s, left_s=max(0.0, self._deadline - self._clock()))

    def time_left(self) -> TimeLeft | None:
        """From what launches took so far, within the budget; None while nothing is known."""
        now = self._clock()
        budget_s = None if self._deadline is None else max(0.0, self._deadline - now)
        if self._rest_s is None:
            return None if budget_s is None else TimeLeft(seconds=budget_s, bound="at most")
        estimate_s = self._rest_s + self._left_of_launch_s(now - self._launched)
        if budget_s is not None and (self._is_adaptive or budget_s < estimate_s):
            return TimeLeft(seconds=budget_s, bound="at most")
        return TimeLeft(seconds=estimate_s, bound="at least" if self._is_adaptive else "about")

    def _label_of(self, trial: Trial) -> str:
        labels = (row.label for row in self.rows if row.trial.trial_id == trial.trial_id)
        return next(labels, trial.label)

    def _left_of_launch_s(self, taken_s: float) -> float:
        """By what such launches take; by its steps where it takes longer than they did."""
        expected_s, fraction = self._current_s, self.fraction
        if self.running is None or expected_s is None:
            return 0.0
        if taken_s > expected_s and fraction > 0.0:
            return taken_s * (1.0 - fraction) / fraction
        return max(0.0, expected_s - taken_s)

    def _remember(self, result: Result) -> None:
        self._durations.add(result)
        self._ended.setdefault(result.trial_id, {})[result.launch] = _EndedLaunch(
            status=result.status,
            weight=failure_weight(result),
            is_expected=result.status == "ok" or is_answer(result),
            figures=figures_of(result),
        )

    def _refresh(self, *trial_ids: str | None) -> None:
        """Make the rows of these trials anew."""
        self.rows = tuple(
            self._row(row.trial, row.label) if row.trial.trial_id in trial_ids else row for row in self.rows
        )
        self._count_time()

    def _row(self, trial: Trial, label: str) -> TrialRow:
        planned = self._planned[trial.trial_id]
        ended = self._ended.get(trial.trial_id, {})
        row = TrialRow(
            trial=trial,
            label=label,
            planned=len(planned),
            done=len(planned & ended.keys()),
            state="waiting",
            is_given_up=sum(launch.weight for launch in ended.values()) >= TRIES_BEFORE_GIVING_UP,
            figures=tuple(launch.figures for launch in ended.values() if launch.figures is not None),
        )
        if self.running == trial.trial_id:
            return dataclasses.replace(row, state="running")
        last = next(reversed(ended.values()), None)
        if last is None or (last.status == "ok" and row.done < row.planned):
            return row
        return dataclasses.replace(row, state=last.status, is_expected=last.is_expected)

    def _count_time(self) -> None:
        waiting = [
            (row.trial, row.planned - row.done - (row.state == "running"))
            for row in self.rows
            if not row.is_given_up
        ]
        running = [(row.trial, 1) for row in self.rows if row.state == "running"]
        self._current_s = self._durations.total_s(running)
        self._rest_s = self._durations.total_s(waiting)


def _reading_order(trial: Trial) -> tuple[bool, int, int, str]:
    """Training first, by batch and number of ranks, whatever the random order of launches."""
    return (
        not trial.is_training,
        trial.rank_batch_size if trial.has_strategy else 0,
        trial.world_size,
        trial.label,
    )


def _labels(trials: Sequence[Trial]) -> tuple[str, ...]:
    """The trials' labels, each made distinct from others of the same words."""
    labels = disambiguate([trial.label for trial in trials], trials, [trial.device for trial in trials])
    count = Counter(labels)
    return tuple(
        f"{label}, {trial.purpose}" if count[label] > 1 and trial.purpose is not None else label
        for label, trial in zip(labels, trials, strict=True)
    )
