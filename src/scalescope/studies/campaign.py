"""Campaign: runs a plan's launches in their order, stores each at once, resumes, and keeps to the budget."""

import dataclasses
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from scalescope.errors import BadInput, Interrupted
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Launcher, Outcome, RanksLost, Watcher
from scalescope.report.section import Section
from scalescope.results.provenance import environment_id
from scalescope.results.result import Result
from scalescope.results.run import Run, load_run
from scalescope.results.run_folder import RunFolder
from scalescope.studies.durations import LaunchDurations
from scalescope.studies.giving_up import TRIES_BEFORE_GIVING_UP, failure_weight

# A launch that ended so is an answer; --resume keeps it. Others are tried again.
KEPT = ("ok", "oom", "invalid")
BUDGET_SPENT = "The budget of"  # how the note about it begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All trials of a run and the request they come from."""

    experiment: Experiment
    trials: tuple[Trial, ...]
    machine: Machine
    notes: tuple[str, ...] = ()
    once: tuple[Trial, ...] = ()  # run after the first round: repeats would tell nothing new
    # Launched first in every round, by id: what was asked for, before what only explains it.
    first: frozenset[str] = frozenset()
    chosen: tuple[tuple[Trial, int], ...] | None = None  # these launches in this order, instead of rounds
    only: tuple[int, ...] | None = None  # launch numbers that are ours, where several commands share a run
    budget_since: str | None = (
        None  # when the job that shares it was submitted: earlier launches do not count
    )
    environment: str | None = None  # id of the machine that began the run, where another of its kind goes on

    @property
    def all_trials(self) -> tuple[Trial, ...]:
        return (*self.trials, *self.once)

    def launches(self) -> list[tuple[Trial, int]]:
        """Every launch in order: round after round, each round in a random order of its own.

        Rounds keep the comparison fair when the machine changes over time, and balanced when a budget
        ends the run early. What was asked for comes first in each, so that a budget costs explanations
        before it costs answers.
        """
        if self.chosen is not None:
            return list(self.chosen)
        ordered: list[tuple[Trial, int]] = []
        for launch in range(self.experiment.measuring.repeats):
            round_of_trials = sorted(self.trials, key=lambda trial: trial.trial_id)
            random.Random(f"{self.experiment.measuring.order_seed}/{launch}").shuffle(round_of_trials)
            round_of_trials.sort(key=lambda trial: trial.trial_id not in self.first)
            ordered.extend((trial, launch) for trial in round_of_trials)
            if launch == 0:
                ordered.extend((trial, launch) for trial in self.once)
        return ordered

    def own_launches(self) -> list[tuple[int, Trial, int]]:
        """The launches that are ours to make, with their place in the order of all."""
        numbered = ((order, trial, launch) for order, (trial, launch) in enumerate(self.launches()))
        return [one for one in numbered if self.only is None or one[2] in self.only]

    def ends_part(self, ordered: Sequence[tuple[int, Trial, int]], place: int) -> bool:
        """Whether a round, or what was asked for in it, is complete with this launch."""
        if place + 1 == len(ordered):
            return True
        (_, trial, launch), (_, next_trial, next_launch) = ordered[place : place + 2]
        return launch != next_launch or (trial.trial_id in self.first) != (next_trial.trial_id in self.first)

    @property
    def is_last(self) -> bool:
        """Whether all launches have been made once ours are."""
        return self.only is None or self.experiment.measuring.repeats - 1 in self.only


class CampaignWatcher(Watcher, Protocol):
    """Told how a campaign goes on, besides what happens inside each launch."""

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

        A study that decides on the way what to launch says so again for every further part of its plan.
        `budget_s` is the time that may still be spent.
        """
        ...

    def launching(self, trial: Trial, launch: int) -> None: ...

    def ended(self, result: Result) -> None: ...

    def verdict(self, text: str) -> None:
        """The answer as far as it is known; it takes the place of an earlier one."""
        ...


More = Callable[[Run], tuple[tuple[Trial, int], ...]]
Verdict = Callable[[Run], str | None]  # the answer as far as it is known; None while there is none


def run_campaign(
    plan: Plan,
    launcher: Launcher,
    folder: RunFolder,
    watcher: CampaignWatcher,
    more: More = lambda run: (),
    heard: Callable[[Result], None] = lambda result: None,
    verdict: Verdict = lambda run: None,
) -> list[str]:
    """Run what is not done yet, then what `more` asks for; returns what has to be said about it.

    `more` sees all results so far and is asked again until it names no launch that was not made.
    """
    started = time.monotonic()
    if plan.only is not None:  # the time that others took counts: there is one budget for each submission
        shared = [one for one in load_run(folder.path).results if one.started_at >= (plan.budget_since or "")]
        started -= sum(result.duration_s for result in shared)
    notes, in_time = _run_plan(plan, launcher, folder, watcher, started, heard, verdict)
    tried: set[tuple[str, int]] = set()
    while in_time and plan.is_last:
        run = load_run(folder.path)
        done = tried | {result.key for result in run.of_status(*KEPT)}
        launches = tuple((trial, n) for trial, n in more(run) if (trial.trial_id, n) not in done)
        if not launches:
            break
        tried |= {(trial.trial_id, n) for trial, n in launches}  # one that fails is not tried for ever
        further = dataclasses.replace(plan, chosen=launches, only=None, notes=())
        said, in_time = _run_plan(further, launcher, folder, watcher, started, heard, verdict)
        notes += said
    return notes


def _run_plan(
    plan: Plan,
    launcher: Launcher,
    folder: RunFolder,
    watcher: CampaignWatcher,
    started: float,
    heard: Callable[[Result], None],
    verdict: Verdict,
) -> tuple[list[str], bool]:
    """Run what is not done yet; returns what has to be said, and whether the budget was kept."""
    notes: list[str] = []
    in_time = True
    before = load_run(folder.path)
    finished = {result.key for result in before.of_status(*KEPT)}
    ordered = plan.own_launches()
    if plan.only is not None:  # what ended the ranks of another launch may end ours: all others first
        troubled = {result.trial_id for result in before.of_status("failed", "hang")}
        ordered.sort(key=lambda one: one[1].trial_id in troubled)
    durations = LaunchDurations(before.results)
    failures = Counter(
        {result.trial_id: failure_weight(result) for result in before.of_status("oom", "invalid")}
    )
    given_up: Counter[str] = Counter()
    refusals = _Refusals(watcher, some_worked=bool(before.of_status("ok")))
    watcher.began(
        [(trial, launch) for _, trial, launch in ordered],
        before.of_status(*KEPT),
        _budget_left_s(plan, started),
    )
    for place, (order, trial, launch) in enumerate(ordered):
        if (trial.trial_id, launch) in finished:
            continue
        if failures[trial.trial_id] >= TRIES_BEFORE_GIVING_UP:
            given_up[trial.label] += 1
            continue
        budget = plan.experiment.measuring.budget
        expected = durations.expected(trial)
        if budget is not None and time.monotonic() - started + expected > budget:
            # --resume has a budget of its own, but it may be too small for any launch.
            next_time = "--resume goes on" if expected <= budget else f"the next takes about {expected:.1f} s"
            notes.append(
                f"{BUDGET_SPENT} {budget:g} s ended the run with {_to_go(ordered[place:], finished)} "
                f"of {len(ordered)} launches to go; {next_time}."
            )
            in_time = False
            break
        result, bad_input = _launch_once(plan, launcher, folder, watcher, trial, launch, order)
        durations.add(result)
        failures[trial.trial_id] += TRIES_BEFORE_GIVING_UP if bad_input else failure_weight(result)
        refusals.add(result, bad_input)
        heard(result)
        if plan.ends_part(ordered, place) and (text := verdict(load_run(folder.path))) is not None:
            watcher.verdict(text)
    refusals.decide()
    notes += [f"Gave up on {label}: {count} more launches not run." for label, count in given_up.items()]
    return notes, in_time


def _budget_left_s(plan: Plan, started: float) -> float | None:
    budget = plan.experiment.measuring.budget
    return None if budget is None else max(0.0, budget - (time.monotonic() - started))


def _to_go(launches: list[tuple[int, Trial, int]], finished: set[tuple[str, int]]) -> int:
    return sum((trial.trial_id, number) not in finished for _, trial, number in launches)


def _launch_once(
    plan: Plan,
    launcher: Launcher,
    folder: RunFolder,
    watcher: CampaignWatcher,
    trial: Trial,
    launch: int,
    order: int,
) -> tuple[Result, bool]:
    """Launch and store; the second value says that the request itself was found to be wrong."""
    watcher.launching(trial, launch)
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    started = time.monotonic()

    def record(outcome: Outcome) -> Result:
        result = Result(
            trial_id=trial.trial_id,
            launch=launch,
            order=order,
            status=outcome.status,
            reason=outcome.reason,
            rank=outcome.rank,
            step=outcome.step,
            log=outcome.log,
            settings=dict(trial.settings),
            started_at=started_at,
            duration_s=time.monotonic() - started,
            environment_id=plan.environment or environment_id(plan.machine),
            ranks=outcome.records,
            notes=outcome.notes,
            telemetry=outcome.telemetry,
        )
        folder.append(result)
        return result

    try:
        outcome = launcher.launch(trial, launch, folder, plan.experiment.measuring, watcher)
    except Interrupted as interruption:
        name = signal.Signals(interruption.signum).name
        record(Outcome(status="failed", reason=f"interrupted by {name}"))
        raise
    except RanksLost as error:
        record(error.outcome)
        raise
    return record(outcome), outcome.bad_input


class _Refusals:
    """Ranks that found the request wrong: one trial's is a failure like any, all trials' is bad input."""

    def __init__(self, watcher: CampaignWatcher, *, some_worked: bool) -> None:
        self._watcher = watcher
        self._some_worked = some_worked
        self._held_back: list[Result] = []

    def add(self, result: Result, bad_input: bool) -> None:
        """Tell of a result, unless it may turn out to be what is said of the whole request in one line."""
        if bad_input and not self._some_worked:
            self._held_back.append(result)
            if [one.reason for one in self._held_back].count(result.reason) > 1:
                self.decide()
            return
        self._some_worked |= result.status == "ok"
        if self._some_worked:
            self._release()
        self._watcher.ended(result)

    def decide(self) -> None:
        """Refuse the request where nothing of it worked."""
        if self._held_back and not self._some_worked:
            first = self._held_back[0]
            log = f" (log: {first.log})" if first.log else ""
            raise BadInput(f"{first.reason}{log}")
        self._release()

    def _release(self) -> None:
        for result in self._held_back:
            self._watcher.ended(result)
        self._held_back.clear()
