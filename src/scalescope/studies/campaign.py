"""Launches round after round: their order, storing, the budget, and when a trial is given up."""

import dataclasses
import random
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from scalescope.analysis.durations import LaunchDurations
from scalescope.errors import BadInput, Interrupted
from scalescope.experiment.explanations import explained_job
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Explained, Launcher, Outcome, RanksLost
from scalescope.results.provenance import environment_id, workload_files
from scalescope.results.result import FIRST_REPEAT, Result
from scalescope.results.run import Run, earlier_results, load_run, storable
from scalescope.results.run_folder import RunFolder
from scalescope.results.run_record import RunEnd, resume_command
from scalescope.secret_variables import hidden, hide_in
from scalescope.studies.plan import Launch, Plan
from scalescope.studies.study import NextLaunches
from scalescope.studies.watcher import Budget, CampaignWatcher

# ---- When a trial that fails is not launched again


TRIES_BEFORE_GIVING_UP = 2


def failure_weight(result: Result) -> int:
    """How much a launch counts for giving up; failures that will repeat themselves count in full."""
    if result.status == "ok":
        return 0
    return TRIES_BEFORE_GIVING_UP if result.status in ("oom", "invalid") else 1


class FailedJobs:
    """Jobs that only failed so far: the same with a part removed is likely to fail as well."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._ended: dict[str, bool] = {}  # by trial, whether a launch of it worked
        for result in results:
            self.add(result)

    def add(self, result: Result) -> None:
        self._ended[result.trial_id] = self._ended.get(result.trial_id, False) or result.status == "ok"

    def include_job_of(self, trial: Trial) -> bool:
        """Whether a launch would only explain one of them."""
        job = explained_job(trial)
        return job is not None and self._ended.get(job.trial_id) is False


# ---- Campaign: runs a plan's launches in their order, stores each at once, resumes, and keeps to the budget


# A launch that ended so is an answer; --resume keeps it. Others are tried again.
KEPT = ("ok", "oom", "invalid")
_MARGIN, _LEAST_ROOM_S = 1.25, 5.0  # of a budget, for what takes longer than expected
_MOST_FOR_A_REPEAT = 0.1  # of the time that a search has left
DISTURBED_IN_A_ROW = 3  # repeats that are disturbed too: the load stays


def run_campaign(
    plan: Plan,
    launcher: Launcher,
    folder: RunFolder,
    watcher: CampaignWatcher,
    study: NextLaunches | None = None,
) -> tuple[list[str], RunEnd | None]:
    """Run what is not done yet, then what the study wants next; returns notes, and why it ended.

    The study sees all results so far and is asked again until it names no launch that was not made. A plan
    for the next launch alone ends with it: None is that there are more, for other commands.
    """
    campaign = _Campaign(plan=plan, launcher=launcher, folder=folder, watcher=watcher, study=study)
    end = campaign.run(plan)
    tried: set[tuple[str, int]] = set()
    while study is not None and end is None and (plan.is_last or plan.continues):
        run = load_run(folder.path)
        done = tried | {result.key for result in run.of_status(*KEPT)}
        wanted = study.next_launches(run, campaign.remaining_s())
        launches = tuple(launch for launch in wanted if launch.key not in done)
        if plan.continues:  # of a plan that other commands continue too, those of this one
            launches = tuple(launch for launch in launches if plan.includes(launch.number))
        if not launches:
            end = _end_of_search(campaign, study, run, done)
            break
        if plan.only_next and tried:
            return campaign.notes, None
        launches = launches[:1] if plan.only_next else launches
        tried |= {launch.key for launch in launches}  # one that fails is not tried for ever
        end = campaign.run(dataclasses.replace(plan, chosen=launches, only=None, notes=()))
    return campaign.notes, end or RunEnd(why="finished", missing=0)


def _end_of_search(
    campaign: "_Campaign", study: NextLaunches, run: Run, done: Collection[tuple[str, int]]
) -> RunEnd:
    """Why a study wants no more launches: it is done, or none fits into the time that is left."""
    more = () if campaign.deadline is None else study.next_launches(run, None)
    if any(launch.key not in done for launch in more):
        return RunEnd(why="budget", budget_s=campaign.plan.experiment.measuring.budget)
    return RunEnd(why="finished", missing=0)


def missing_launches(planned: Sequence[Launch], run: Run) -> int:
    """Launches without an answer; a trial that was given up on is not waited for."""
    answered = {result.key for result in run.of_status(*KEPT)}
    given_up = {result.trial_id for result in run.of_status("oom", "invalid")}
    return sum(launch.key not in answered and launch.trial.trial_id not in given_up for launch in planned)


def budget_note(end: RunEnd, planned: int | None, path: Path) -> str:
    """That a budget ended a run, what is missing, and the command that measures it.

    `planned` is None where the study decides on the way how many launches there are.
    """
    assert end.budget_s is not None
    command = resume_command(path, _enough_s(end))
    left = "before it was done" if planned is None else f"with {end.missing} of {planned} launches to go"
    return f"The budget of {end.budget_s:g} s ended the run {left}; {command} continues it."


def nothing_finished_note(end: RunEnd, path: Path) -> str:
    """That a budget was too short for even one launch, how long one takes, and what would work."""
    assert end.budget_s is not None
    note = f"the budget of {end.budget_s:g} s ended the run before any launch was finished"
    if end.next_launch_s:
        note += f"; the next one takes about {end.next_launch_s:.0f} s"
    enough_s = max(_enough_s(end), 2.0 * end.budget_s)  # more than what did not suffice for one
    return f"{note}; {resume_command(path, enough_s)} continues it"


def _enough_s(end: RunEnd) -> float:
    """A budget that should suffice for all that is missing."""
    launches_s = max(_MARGIN * (end.rest_s or 0.0), 2.0 * (end.next_launch_s or 0.0))
    return launches_s + _MARGIN * (end.start_s or 0.0) + _LEAST_ROOM_S


@dataclass(kw_only=True)
class _Campaign:
    """The parts of a plan, one after the other, within one budget."""

    plan: Plan
    launcher: Launcher
    folder: RunFolder
    watcher: CampaignWatcher
    study: NextLaunches | None
    notes: list[str] = field(default_factory=list)
    _code: dict[Path, str] = field(default_factory=dict)  # the SHA-256 of files that launches used
    _disturbed_in_a_row: int = 0  # repeats

    def __post_init__(self) -> None:
        now = time.monotonic()
        self.started = now if self.plan.started_s is None else self.plan.started_s
        self._command_began = self.started
        self.start_s = now - self.started
        if self.plan.is_shared:  # time that others took counts: there is one budget per submission
            self.started -= self._stored_s()

    def _stored_s(self) -> float:
        """What the stored launches took of the budget."""
        since = self.plan.budget_since or ""
        return sum(result.duration_s for result in self._stored().results if result.started_at >= since)

    def remaining_s(self) -> float | None:
        """What is left of the budget; None without one.

        Where commands take turns, what this one took so far is part of the launch that it makes.
        """
        budget = self.plan.experiment.measuring.budget
        if budget is None:
            return None
        spent_s = self._stored_s() if self.plan.only_next else time.monotonic() - self.started
        return max(0.0, budget - spent_s)

    def budget(self) -> Budget | None:
        """The budget and what is left of it; None without one."""
        total_s, left_s = self.plan.experiment.measuring.budget, self.remaining_s()
        if total_s is None or left_s is None:
            return None
        return Budget(total_s=total_s, left_s=left_s)

    @property
    def deadline(self) -> float | None:
        """When the budget is spent, on the monotonic clock; None without one."""
        budget = self.plan.experiment.measuring.budget
        return None if budget is None else self.started + budget

    @property
    def usual_end(self) -> float | None:
        """When no further round is begun, where nobody said how long a run may take; None where somebody did,
        or other commands make launches too."""
        limits = self.plan.experiment.measuring
        if limits.budget is not None or self.plan.usual_s is None or self.plan.is_shared:
            return None
        return self.started + self.plan.usual_s

    def _answers_need_its_time(
        self, launch: Launch, missing: Sequence[Launch], durations: LaunchDurations
    ) -> bool:
        """Whether an explanation would take time from what was asked for."""
        end = self.usual_end if self.deadline is None else self.deadline
        answers = [other for other in missing if not other.explains]
        needed_s = sum(durations.expected(other.trial) for other in (launch, *answers))
        return end is not None and time.monotonic() + needed_s > end

    def _deadline_of(self, launch: Launch) -> float | None:
        """When a launch is ended: as the budget is, or by its own limit before that."""
        if launch.at_most_s is None:
            return self.deadline
        limit = time.monotonic() + launch.at_most_s
        return limit if self.deadline is None else min(limit, self.deadline)

    def run(self, plan: Plan) -> RunEnd | None:
        """Run what is not done yet; returns why that ended early, None where it did not."""
        before = self._stored()
        self._changed_file(before.results)
        finished = {result.key for result in before.of_status(*KEPT)}
        ordered = self._ordered(plan, before)
        durations = LaunchDurations(before.results, core_flops_per_s=plan.machine.core_flops_per_s)
        failures = Counter(
            {result.trial_id: failure_weight(result) for result in before.of_status("oom", "invalid")}
        )
        given_up: Counter[str] = Counter()
        failed_jobs = FailedJobs(before.of_status(*KEPT))
        refusals = _Refusals(self.watcher, some_worked=bool(before.of_status("ok")))
        planned = [(launch.trial, launch.number) for _, launch in ordered]
        self.watcher.began(planned, before.of_status(*KEPT), self.budget())
        is_further = plan is not self.plan  # a part that the study decided on
        total = None if is_further or plan.continues else len(ordered)
        missing: list[Launch] = []  # for want of time
        for index, (order, launch) in enumerate(ordered):
            trial = launch.trial
            if launch.key in finished:
                continue
            unexplained = not plan.explains_failures and failed_jobs.include_job_of(trial)
            if failures[trial.trial_id] >= TRIES_BEFORE_GIVING_UP or unexplained:
                given_up[trial.label] += 1
                continue
            following = [launch for _, launch in ordered[index:] if launch.key not in finished]
            if launch.explains and self._answers_need_its_time(launch, following, durations):
                missing.append(launch)
                continue
            if self._is_over_budget(launch, durations):
                missing += following
                break
            result, explained, bad_input = self._launch(launch, order)
            durations.add(result)
            failed_jobs.add(result)
            finished |= {other.key for other in explained}
            failures[trial.trial_id] += TRIES_BEFORE_GIVING_UP if bad_input else failure_weight(result)
            refusals.add(result, bad_input)
            for other in explained:
                if other.key in {(planned.trial.trial_id, planned.number) for _, planned in ordered}:
                    self.watcher.ended(other)
            if result.stopped_by == "budget" and not self._was_cut_short(launch):
                missing += following
                break
            is_search = launch.stage is not None or launch.label is not None
            if is_search or plan.has_new_answer(ordered, index):
                self._show_interim()
        refusals.decide()
        end = self._ended_by_budget(durations, missing) if missing else None
        if end is not None:
            self.notes.append(budget_note(end, total, self.folder.path))
        if end is None and plan.experiment.measuring.repeat_disturbed and not plan.only_next:
            self._repeat_disturbed(ordered, durations)
        self.notes += [f"Gave up on {label}: {n} more launches not run." for label, n in given_up.items()]
        return end

    def _repeat_disturbed(self, ordered: Sequence[tuple[int, Launch]], durations: LaunchDurations) -> None:
        """Launch again what other load disturbed, with what it is compared with next to it, in a round of its
        own; as often as rounds were asked for, while time is left.

        A load that stays is not waited for: the run would take twice as long, and show the same.
        """
        waiting = _disturbed_blocks(ordered, self._stored())
        if waiting:
            repeats = [(launch.trial, launch.number) for block in waiting for _, launch in block]
            self.watcher.began(repeats, (), self.budget())
        for block in waiting:
            launches = self._renumbered(block)
            if self._disturbed_in_a_row >= DISTURBED_IN_A_ROW or self._has_no_time_for(launches, durations):
                break
            disturbed = False
            made: set[tuple[str, int]] = set()
            for order, launch in sorted(launches, key=lambda numbered: numbered[1].explains):
                if launch.key in made:
                    continue
                result, explained, _ = self._launch(launch, order)
                made |= {other.key for other in explained}
                durations.add(result)
                self.watcher.ended(result)
                disturbed |= result.is_disturbed
                if result.stopped_by == "budget":  # the disturbed launches count, and nothing is missing
                    return
            self._show_interim()
            self._disturbed_in_a_row = self._disturbed_in_a_row + 1 if disturbed else 0

    def _renumbered(self, block: Sequence[tuple[int, Launch]]) -> list[tuple[int, Launch]]:
        """The launches of a block as a round of their own, in a random order; a search's as they are."""
        if any(launch.stage is not None for _, launch in block):
            return list(block)
        made = [result.launch + 1 for result in self._stored().results]
        number = max(FIRST_REPEAT, *made)
        mixed = [(order, dataclasses.replace(launch, number=number)) for order, launch in block]
        random.Random(f"{self.plan.experiment.measuring.order_seed}/{number}").shuffle(mixed)
        return mixed

    def _has_no_time_for(self, launches: Sequence[tuple[int, Launch]], durations: LaunchDurations) -> bool:
        expected_s = sum(durations.expected(launch.trial) for _, launch in launches)
        if any(self._is_costly(launch, durations) for _, launch in launches):
            return True
        ends = [end for end in (self.deadline, self.usual_end) if end is not None]
        return bool(ends) and time.monotonic() + expected_s > min(ends)

    def _is_costly(self, launch: Launch, durations: LaunchDurations) -> bool:
        """Whether repeating a launch of a search would take much of what it has left."""
        left_s = self.remaining_s()
        if launch.at_most_s is None or left_s is None:
            return False
        return durations.expected(launch.trial) > _MOST_FOR_A_REPEAT * left_s

    def _was_cut_short(self, launch: Launch) -> bool:
        """Whether a launch was ended by its own limit, and the budget goes on."""
        remaining_s = self.remaining_s()
        return launch.at_most_s is not None and (remaining_s is None or remaining_s > 0.0)

    def _show_interim(self) -> None:
        interim = None if self.study is None else self.study.interim(self._stored())
        if interim is not None:
            self.watcher.verdict(interim)

    def _changed_file(self, results: Iterable[Result]) -> Path | None:
        """A file of the user's that launches used with another content than those before them."""
        for file in (file for files in workload_files(results).values() for file in files):
            if self._code.setdefault(file.path, file.sha256) != file.sha256:
                return file.path
        return None

    def _stored(self) -> Run:
        self.folder.check()
        return load_run(self.folder.path)

    def _ordered(self, plan: Plan, before: Run) -> list[tuple[int, Launch]]:
        """The launches in their order; what may end the ranks of all others comes last."""
        ordered = plan.launches_to_make()
        if plan.only is not None:
            troubled = {result.trial_id for result in before.of_status("failed", "hang", "interrupted")}
            ordered.sort(key=lambda numbered: numbered[1].trial.trial_id in troubled)
        return ordered

    def _is_over_budget(self, launch: Launch, durations: LaunchDurations) -> bool:
        """Whether there is no time for a launch."""
        # A launch with a limit was chosen by a study that knows what the budget has room for.
        expected_s = 0.0 if launch.at_most_s is not None else durations.expected(launch.trial)
        end = self.deadline
        if end is None and launch.number > 0:  # the first round is always complete
            end = self.usual_end
        return end is not None and time.monotonic() + expected_s > end

    def _ended_by_budget(self, durations: LaunchDurations, missing: Sequence[Launch]) -> RunEnd:
        if not all(durations.knows(launch.trial) for launch in missing):
            root, here = self.folder.path.parent, environment_id(self.plan.machine)
            durations.learn(earlier_results(root, here, but=self.folder.path))
        limits = self.plan.experiment.measuring
        seconds = [durations.estimate_s(launch.trial) for launch in missing]
        return RunEnd(
            why="budget",
            missing=len(missing),
            budget_s=self.plan.usual_s if limits.budget is None else limits.budget,
            next_launch_s=seconds[0],
            rest_s=sum(seconds),
            start_s=self.start_s,
        )

    def _launch(self, launch: Launch, order: int) -> tuple[Result, list[Result], bool]:
        """Launch and store; with what the same start explained, and whether the request itself turned out to
        be wrong."""
        trial, number = launch.trial, launch.number
        self.watcher.launching(trial, number, label=launch.label)
        # Of a command that makes a single launch, its start belongs to it: the next launch takes that too.
        started = self._command_began if self.plan.only_next else time.monotonic()
        began = datetime.now(UTC) - timedelta(seconds=time.monotonic() - started)
        started_at = began.isoformat(timespec="milliseconds")

        def record(outcome: Outcome) -> Result:
            result = Result(
                trial_id=trial.trial_id,
                launch=number,
                stage=launch.stage,
                order=order,
                status=outcome.status,
                reason=None if outcome.reason is None else hidden(outcome.reason),
                stopped_by=outcome.stopped_by,
                rank=outcome.rank,
                step=outcome.step,
                log=outcome.log,
                settings=dict(trial.settings),
                started_at=started_at,
                duration_s=time.monotonic() - started,
                environment_id=self.plan.environment or environment_id(self.plan.machine),
                ranks=outcome.records,
                notes=[hidden(note) for note in outcome.notes],
                telemetry=outcome.telemetry,
            )
            for rank in range(trial.world_size):  # a script may print its arguments
                hide_in(self.folder.log_file(trial.trial_id, number, rank))
                hide_in(self.folder.rank_file(trial.trial_id, number, rank))
            changed = self._changed_file([result] if result.status == "ok" else ())
            if changed is not None:
                reason = f"{changed} changed while this run was measured; start a new run"
                result = dataclasses.replace(result, status="invalid", reason=reason)
            result = storable(result)
            self.folder.append(result)
            return result

        limits = self.plan.experiment.measuring
        try:
            deadline = self._deadline_of(launch)
            outcome = self.launcher.launch(
                trial,
                number,
                self.folder,
                limits,
                self.watcher,
                deadline=deadline,
                phases=self.plan.phases_of(launch),
            )
        except Interrupted as interruption:
            name = signal.Signals(interruption.signum).name
            record(Outcome(status="interrupted", reason=f"interrupted by {name}", stopped_by="signal"))
            raise
        except RanksLost as error:
            record(error.outcome)
            raise
        result = record(outcome)
        known = outcome.explained if result.status == "ok" else ()
        explained = [self._store_explained(result, explained) for explained in known]
        if outcome.signum is not None:
            raise Interrupted(outcome.signum)
        return result, explained, outcome.bad_input

    def _store_explained(self, result: Result, explained: Explained) -> Result:
        """What the start of another result measured after it."""
        trial = explained.trial
        for rank in range(trial.world_size):
            hide_in(self.folder.rank_file(trial.trial_id, result.launch, rank))
        other = dataclasses.replace(
            result,
            trial_id=trial.trial_id,
            settings=dict(trial.settings),
            stage=None if result.stage is None else dataclasses.replace(result.stage, base=result.trial_id),
            duration_s=0.0,
            ranks=explained.records,
            notes=[],
            telemetry=explained.telemetry,
        )
        self.folder.append(storable(other))
        return other


def _disturbed_blocks(ordered: Sequence[tuple[int, Launch]], stored: Run) -> list[list[tuple[int, Launch]]]:
    """What other load disturbed, round by round, with what was asked for of the same block; without as many
    rounds as were repeated before."""
    disturbed = {result.key for result in stored.results if result.is_disturbed}
    repeats = Counter(result.trial_id for result in stored.results if result.launch >= FIRST_REPEAT)
    repeats.update(result.trial_id for result in stored.replaced)
    rounds: dict[tuple[int, str], list[tuple[int, Launch]]] = {}
    for order, launch in ordered:
        if launch.trial.benchmark_card.measures_time:
            rounds.setdefault((launch.number, launch.block), []).append((order, launch))
    blocks = []
    for members in rounds.values():
        if not any(launch.key in disturbed for _, launch in members):
            continue
        again = [(o, launch) for o, launch in members if not launch.explains or launch.key in disturbed]
        if all(repeats[launch.trial.trial_id] > 0 for _, launch in again):
            repeats.subtract(launch.trial.trial_id for _, launch in again)
        else:
            blocks.append(again)
    return blocks


class _Refusals:
    """Ranks that refuse the request: one trial's refusal is a failure like any, all trials' is bad input."""

    def __init__(self, watcher: CampaignWatcher, *, some_worked: bool) -> None:
        self._watcher = watcher
        self._some_worked = some_worked
        self._held_back: list[Result] = []

    def add(self, result: Result, bad_input: bool) -> None:
        """Pass a result on, unless it may turn out to be the one error of the whole request."""
        if bad_input and not self._some_worked:
            self._held_back.append(result)
            if [held.reason for held in self._held_back].count(result.reason) > 1:
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
