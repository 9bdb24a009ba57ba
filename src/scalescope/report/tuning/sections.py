"""What `tune` shows: the plan, the leaderboard and the answer."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.tuning.losses import LossCheck, UnknownLoss
from scalescope.analysis.tuning.search import Support
from scalescope.analysis.verdicts import INCONCLUSIVE, LEAST_EFFECT, Verdict
from scalescope.catalog.setting import Change
from scalescope.experiment.trial import Trial
from scalescope.report.machine import threads_text
from scalescope.report.numbers import (
    MISSING,
    data_size,
    duration,
    in_ms,
    is_useful,
    percent,
    short_percent,
    shortened,
    signed_percent,
)
from scalescope.report.section import Section, ShownCommand, Table
from scalescope.report.tuning.code import changes_between, code_section, context_of
from scalescope.results.run_commands import command_on
from scalescope.results.run_folder import TUNED
from scalescope.results.run_record import resume_argv

# ---- What `tune` would try, and what it does not


def plan_of_tuning(
    baseline: Trial,
    changes: Sequence[tuple[str, str]],
    launch_s: float | None,
    budget_s: float | None,
    *,
    once: bool = False,
    formats: tuple[str, ...] = (),
) -> Section:
    """What --dry-run shows: (lever, what it changes) of all that may be tried, the most promising first.

    `launch_s` is None where nobody knows how long a launch takes.
    """
    each = "" if launch_s is None else f"; a launch takes about {duration(launch_s)}"
    within = "until it is settled" if budget_s is None else f"for {duration(budget_s)} at most"
    how = (
        "One launch each, so no verdict"
        if once
        else f"The current settings first, then launches on top of the best so far, {within}"
    )
    columns = ("lever", "changes")
    return Section(
        title=f"Levers to compare with {baseline.label}",
        table=Table(columns=columns, rows=tuple(changes), left=frozenset(columns)),
        lines=(f"{how}{each}. Nothing was run.", *formats),
    )


def left_out_section(inapplicable: Sequence[tuple[str, str]]) -> tuple[Section, ...]:
    """What was not tried, levers of the same reason in one line."""
    if not inapplicable:
        return ()
    by_reason: dict[str, list[str]] = {}
    for text, reason in inapplicable:
        by_reason.setdefault(reason, []).append(text)
    lines = tuple(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
    return (Section(title="Not tried", lines=lines),)


# ---- Tuning: what a search tried and found, as data that sentences, tables and JSON are made of


NOW = ""  # the baseline's name among jobs
LeverStatus = Literal[
    "recommended",  # part of what is recommended
    "kept",  # part of the best, which is not recommended
    "dropped",  # helped when it was added, and gave nothing in the end
    "no gain",
    "slower",
    "undecided",
    "failed",
    "loss differs",
    "not measured",
    "unpromising",  # not launched: nothing is expected of it, by the facts of the job
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedCombination:
    """Settings that were measured together, against the current ones."""

    levers: tuple[str, ...]  # empty: the current settings
    configuration: Configuration
    speedup: Estimate
    verdict: Verdict | None  # None: a single launch, or the current settings themselves
    loss_change: float | None = None
    loss_differs: bool = False
    loss_unknown: UnknownLoss | None = None  # why losses could not be compared, of a script
    is_confirmed: bool = False  # the speedup is that of new launches, made in turns with the current settings
    failure: str | None = None  # of a launch, where others worked
    tried_step_s: float | None = None  # of what was only tried in the start of another one, by its speedup

    @property
    def step_s(self) -> float:
        return self.configuration.step_time_s.value if self.tried_step_s is None else self.tried_step_s

    @property
    def launches(self) -> int:
        """Of its own, that count."""
        return len(self.configuration.launches) if self.tried_step_s is None else 0

    @property
    def left_out(self) -> int:
        """Launches that do not count."""
        return self.configuration.left_out if self.tried_step_s is None else 0

    @property
    def is_usable(self) -> bool:
        """Whether it may be recommended where it is faster."""
        return not self.loss_differs and self.failure is None


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedLever:
    """A lever, and what it gave where it was added."""

    name: str
    trial_id: str  # of the lever alone
    changes: Change
    status: LeverStatus
    added_to: tuple[str, ...] = ()
    speedup: Estimate | None = None  # over what it was added to
    support: Support | None = None  # of a recommended lever
    launches: int = 0  # of the combination in which it was new
    reason: str | None = None  # why it failed
    usual_cause: str | None = None  # of such failures
    may_give: float | None = None  # where it was not measured: the speedup to expect on top of the fastest


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherJob:
    """A job that trains something else, such as a larger batch: compared by sample and by how it scales."""

    name: str  # NOW: the unchanged job
    configuration: Configuration
    speedup: Estimate  # per sample, over the unchanged job
    scaling: Estimate | None = None  # all ranks over one


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptArgument:
    """An argument of a training command's own that does what a lever did."""

    setting: str
    text: str  # as typed, with its value where that is known
    is_known: bool = False  # rather than guessed from its name


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The results of a tuning run."""

    baseline: Trial
    combinations: tuple[TriedCombination, ...] = ()  # every launch that finished is in one of them
    levers: tuple[TriedLever, ...] = ()
    other_jobs: tuple[OtherJob, ...] = ()
    without_communication: Configuration | None = None  # the current settings, measured to order the levers
    inapplicable: tuple[tuple[str, str], ...] = ()  # (lever, why)
    winner: tuple[str, ...] = ()  # the best levers; empty: the current settings
    recommended: bool = False
    is_confirmed: bool = False
    gain: Estimate | None = None  # of the winner
    at_most: float | None = None  # nothing that was tried is faster than that, as a share
    baseline_failure: str | None = None
    finished: bool = True
    budget_ended: bool = True  # where it is not finished: for want of time, not because launches failed
    winner_trial: Trial | None = None  # the winner as one trial
    one_launch_each: bool = False  # by ranks that stay the same processes: there is no verdict
    loss_steps: int | None = None  # over which losses were to be compared; None: that was not asked for
    loss_check: LossCheck | None = None  # of the winner
    arguments: tuple[ScriptArgument, ...] = ()  # of a command, for what is recommended

    @property
    def tried(self) -> tuple[TriedLever, ...]:
        """The levers that were launched."""
        return tuple(lever for lever in self.levers if lever.status not in ("not measured", "unpromising"))

    @property
    def has_script(self) -> bool:
        """Whether a user's script or function is trained."""
        return self.baseline.workload_card.brings_data or self.baseline.is_command

    def changing_numbers(self, levers: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the levers that change what is computed."""
        changing = {lever.name for lever in self.levers if lever.changes != "nothing"}
        return tuple(name for name in levers if name in changing)

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """Recommended levers that were not measured again at the end, one by one."""
        return tuple(
            lever.name
            for lever in self.levers
            if lever.status == "recommended" and lever.support != "confirmed"
        )


# ---- The result of `tune`: the sentence, what was measured, what each lever gave, and the line that runs it


CURRENT = "current settings"
_SPEED = "speedup"
_MORE_TIME_S = 600.0
_TELLING = 0.25  # a bound above this share says little


def tuning_sections(tuning: Tuning) -> tuple[Section, ...]:
    """Verdict first, then everything measured, then each lever, other jobs, and what does not apply."""
    sections = [Section(lines=(verdict(tuning), *_remarks(tuning)))]
    if tuning.combinations:
        sections.append(_measured(tuning))
    if _shown_levers(tuning):
        sections.append(_levers(tuning))
    if tuning.other_jobs:
        sections.append(_other_jobs(tuning))
    sections += _in_script(tuning)
    return (*sections, *left_out_section((*_not_measured(tuning), *tuning.inapplicable)))


def _in_script(tuning: Tuning) -> list[Section]:
    """The lines that do the same in a user's script, for a custom workload or a command."""
    if not tuning.recommended or tuning.winner_trial is None or not tuning.has_script:
        return []
    changes = changes_between(tuning.baseline, tuning.winner_trial)
    section = code_section(changes, context_of(tuning.winner_trial))
    return [dataclasses.replace(section, lines=(*section.lines, *map(_own_argument, tuning.arguments)))]


def _own_argument(argument: ScriptArgument) -> str:
    if argument.is_known:
        return f"{argument.setting}: {argument.text} on the script's command line does the same."
    return f"{argument.setting}: the script has an argument {argument.text}, which probably does the same."


def verdict(tuning: Tuning) -> str:
    """One sentence: what to change and what it gives, or that nothing that was tried is faster."""
    if tuning.baseline_failure is not None:
        return f"The current settings could not be measured: {tuning.baseline_failure}"
    if not tuning.combinations:
        return "Nothing was measured yet."
    if tuning.one_launch_each:
        return _of_single_launches(tuning)
    if tuning.recommended and tuning.gain is not None:
        return f"{_names(tuning.winner)} is faster: {_estimate(tuning.gain)} the current speed."
    check = tuning.loss_check
    if check is not None and check.refuses and tuning.gain is not None:
        speed = f"{_names(tuning.winner)} is faster ({_estimate(tuning.gain)})"
        return f"{speed}, but not recommended: {_why_refused(check)}."
    if len(tuning.combinations) == 1:
        if not tuning.levers and tuning.other_jobs:
            return "No requested lever trains the same job; other jobs are listed separately."
        return _only_baseline_works(tuning)
    excluded = [combination for combination in tuning.combinations if not combination.is_usable]
    if len(tuning.combinations) - len(excluded) == 1:
        return "Nothing that was tried can be recommended."
    if (tuning.at_most or 0.0) > _TELLING:
        return (
            "No setting is significantly faster than the current ones; launches vary too much to exclude "
            f"gains of up to {_bound(tuning)}."
        )
    tried = "that can be recommended" if excluded else "that was tried"
    return f"Nothing {tried} beats the current settings by more than {_bound(tuning)}."


def _only_baseline_works(tuning: Tuning) -> str:
    if any(lever.status == "failed" for lever in tuning.levers):
        return "Only the current settings could be measured; every lever that was tried failed."
    if tuning.levers and all(lever.status == "unpromising" for lever in tuning.levers):
        return "No lever was tried: the parts they change take too little of this job's step."
    if not tuning.budget_ended:
        return "Only the current settings could be measured."
    return "Only the current settings could be measured; use a larger --budget to try levers."


def _why_refused(check: LossCheck) -> str:
    if check.failure is not None:
        return f"over {check.steps} steps it {shortened(check.failure)}"
    return f"the loss differs by {_loss_difference(check)}"


def _loss_difference(check: LossCheck) -> str:
    change = MISSING if check.change is None else signed_percent(check.change)
    return f"{change} over the last {check.last_steps} of {check.steps} steps"


def _of_losses(tuning: Tuning) -> list[str]:
    """How much the losses differ over many steps, where something is recommended and that was asked for."""
    check = tuning.loss_check
    if not tuning.recommended or tuning.loss_steps is None:
        return []
    if check is None:
        return [f"Losses over {tuning.loss_steps} steps were not compared; a larger --budget allows it."]
    if check.change is None:
        why = check.unknown or "the ranks recorded none"
        return [f"Losses over {check.steps} steps could not be compared: {shortened(why)}."]
    return [f"The loss differs by {_loss_difference(check)}, within the tolerance."]


_WHY_UNKNOWN: Mapping[UnknownLoss, str] = {
    "not seeded": "the script is not seeded",
    "not repeated": "launches of the current settings begin with different losses",
    "not finite": "a loss of the current settings is not finite",
    "not seen": "the script did not call backward() on a loss",
}


def _of_numbers(tuning: Tuning) -> list[str]:
    """What changes numerical results in a user's script, and how its loss compares."""
    if not tuning.has_script:
        return []
    lines = []
    changing = tuning.changing_numbers(tuning.winner) if tuning.recommended else ()
    if changing:
        best = next(c for c in tuning.combinations if c.levers == tuning.winner)
        change = (
            "" if best.loss_change is None else f" The loss differs by {signed_percent(best.loss_change)}."
        )
        names = ", ".join(changing)
        lines.append(f"Changes the computed numbers: {names}; --keep-numerics does not try it.{change}")
    unknown = [
        combination.loss_unknown
        for combination in tuning.combinations
        if combination.loss_unknown is not None and tuning.changing_numbers(combination.levers)
    ]
    lines += [f"Losses could not be compared: {_WHY_UNKNOWN[why]}." for why in dict.fromkeys(unknown)]
    return lines


def _bound(tuning: Tuning) -> str:
    """What the fastest may gain at most, rounded up; at least one percent, below which nothing is claimed."""
    bound = math.ceil(1000.0 * max(LEAST_EFFECT, tuning.at_most or 0.0)) / 1000.0
    return short_percent(bound)


def _remarks(tuning: Tuning) -> list[str]:
    lines = [*_of_memory(tuning), *_of_numbers(tuning), *_of_losses(tuning)]
    refused = tuning.loss_check is not None and tuning.loss_check.refuses
    if tuning.recommended and tuning.unconfirmed and len(tuning.winner) > 1:
        names = ", ".join(tuning.unconfirmed)
        lines.append(f"Measured when added, not separately confirmed at the end: {names}.")
    if tuning.recommended and not tuning.is_confirmed:
        lines.append("There was no time for new launches to confirm it; use a larger --budget.")
    if not tuning.recommended and not refused and tuning.winner and tuning.gain is not None:
        lines.append(
            f"{_names(tuning.winner)} was fastest ({_estimate(tuning.gain)}), but the difference is not "
            "significant."
        )
    lines += [
        _exclusion(combination) for combination in tuning.combinations if _is_missed(tuning, combination)
    ]
    if not tuning.finished and tuning.baseline_failure is None:
        more = ", with a larger --budget," if tuning.budget_ended else ""
        lines.append(f"The search is not complete; --resume{more} continues it.")
    return lines


def _of_memory(tuning: Tuning) -> list[str]:
    """The memory that the recommended settings cost or free."""
    peaks = {
        combination.levers: combination.configuration.peak_memory_bytes for combination in tuning.combinations
    }
    before, after = peaks.get(()), peaks.get(tuning.winner)
    if not tuning.recommended or before is None or after is None:
        return []
    now, then = data_size(after), data_size(before)
    return [
        f"Memory at its peak: {now}, as before."
        if now == then
        else f"Memory at its peak: {now} in place of {then}."
    ]


def _is_missed(tuning: Tuning, combination: TriedCombination) -> bool:
    """Whether something is faster than what is recommended, and cannot be used."""
    check = tuning.loss_check
    if check is not None and check.refuses and combination.levers == tuning.winner:
        return False  # the first sentence says it
    best = tuning.gain.value if tuning.recommended and tuning.gain is not None else 1.0
    return not combination.is_usable and combination.speedup.value > best * (1.0 + LEAST_EFFECT)


def _exclusion(combination: TriedCombination) -> str:
    why = f"a launch of it failed ({combination.failure})"
    if combination.loss_differs:
        why = "its loss differs"
        if combination.loss_change is not None:
            why += f" ({signed_percent(combination.loss_change)})"
    names, speed = _names(combination.levers), _estimate(combination.speedup)
    return f"{names} was faster ({speed}), but {why}: not recommended."


def _names(levers: tuple[str, ...]) -> str:
    return " + ".join(levers) if levers else CURRENT


def _of_single_launches(tuning: Tuning) -> str:
    """What was fastest, that one launch is not a verdict, and how to get one."""
    best = fastest_so_far(tuning)
    fastest = (
        "No lever was faster"
        if best is None
        else f"{_names(best.levers)} was fastest ({best.speedup.value:.2f}×)"
    )
    return (
        f"{fastest}, but this is not a verdict: under torchrun or srun there is a single launch of each. "
        "For a verdict run scalescope tune on one machine without torchrun or srun, or as a job with "
        "--launcher slurm."
    )


def fastest_so_far(tuning: Tuning) -> TriedCombination | None:
    """The fastest combination whose loss is the same; None where none is above the current speed."""
    tried = [combination for combination in tuning.combinations if combination.levers]
    usable = [combination for combination in tried if combination.is_usable]
    best = max(usable, key=lambda combination: combination.speedup.value, default=None)
    return best if best is not None and best.speedup.value > 1.0 + LEAST_EFFECT else None


def _measured(tuning: Tuning) -> Section:
    rows = [_combination(tuning, combination) for combination in tuning.combinations]
    if tuning.without_communication is not None:
        rows.append(_silent(tuning.without_communication))
    columns = (
        "settings",
        _SPEED,
        "step time",
        "launches",
        "verdict",
        "memory",
        "GPU busy",
        "loss change",
        "remark",
    )
    now = [tried.configuration for tried in tuning.combinations if not tried.levers]
    threads = "".join(f" ({text})" for text in (threads_text(now),) if text)
    title = f"Measured, against {tuning.baseline.label}{threads} · 1.00× is the current speed"
    if not tuning.one_launch_each:
        title += " in the launches nearest in time, 95 % intervals in brackets"
    return Section(
        title=title,
        table=Table(
            columns=columns,
            rows=tuple(tuple(row.get(name, MISSING) for name in columns) for row in rows),
            left=frozenset(("settings", "verdict", "remark")),
            optional=("memory", "GPU busy", "loss change"),
        ),
    )


def _combination(tuning: Tuning, combination: TriedCombination) -> dict[str, str]:
    configuration = combination.configuration
    memory, busy = configuration.peak_memory_bytes, configuration.telemetry.gpu_utilization
    return {
        "settings": _names(combination.levers),
        _SPEED: _estimate(combination.speedup),
        "step time": in_ms(combination.step_s),
        "launches": f"{combination.launches + combination.left_out}",
        "verdict": combination.verdict or MISSING,
        "memory": MISSING if memory is None else data_size(memory),
        "GPU busy": MISSING if busy is None else percent(busy),
        "loss change": (
            MISSING if combination.loss_change is None else signed_percent(combination.loss_change)
        ),
        "remark": _remark(tuning, combination),
    }


def _silent(configuration: Configuration) -> dict[str, str]:
    return {
        "settings": f"{CURRENT}, without communication",
        "step time": in_ms(configuration.step_time_s.value),
        "launches": f"{len(configuration.launches) + configuration.left_out}",
        "remark": "shows the cost of communication",
    }


def _remark(tuning: Tuning, combination: TriedCombination) -> str:
    if tuning.recommended and combination.levers == tuning.winner:
        return "recommended"
    if combination.loss_differs:
        return "the loss differs"
    if combination.failure is not None:
        return f"a launch failed: {shortened(combination.failure)}"
    if combination.tried_step_s is not None:
        return "tried in another one's start: no verdict"
    if tuning.recommended and tuning.gain is not None and combination.speedup.value > tuning.gain.value:
        return "not measurably faster than the recommended settings"
    if combination.verdict == INCONCLUSIVE and _excludes_no_change(combination.speedup):
        return f"not sure enough, as one of {len(tuning.combinations) - 1} sets"
    single = combination.launches == 1 and not tuning.one_launch_each
    return "one launch: no verdict" if single and combination.levers else ""


def _excludes_no_change(speedup: Estimate) -> bool:
    return speedup.low is not None and speedup.high is not None and not speedup.low <= 1.0 <= speedup.high


_RESULTS = {
    "recommended": "recommended",
    "kept": "not proven",
    "dropped": "dropped: no gain in the end",
    "no gain": "no gain",
    "slower": "slower",
    "undecided": "undecided",
    "failed": "failed",
    "loss differs": "left out: the loss differs",
}


def _shown_levers(tuning: Tuning) -> list[TriedLever]:
    """The levers that were launched; of single launches those that failed, the others are rows above."""
    tried = tuning.tried
    return [lever for lever in tried if lever.status == "failed" or not tuning.one_launch_each]


def _levers(tuning: Tuning) -> Section:
    columns = ("lever", "added to", _SPEED, "launches", "result")
    title = "Levers in the order in which they were tried, each on top of the best so far"
    return Section(
        title="Levers that failed" if tuning.one_launch_each else title,
        table=Table(
            columns=columns,
            rows=tuple(_lever(lever) for lever in _shown_levers(tuning)),
            left=frozenset(("lever", "added to", "result")),
        ),
        lines=tuple(
            f"Why {lever.name} usually fails: {lever.usual_cause}."
            for lever in tuning.tried
            if lever.status == "failed" and lever.usual_cause is not None
        ),
    )


def _lever(lever: TriedLever) -> tuple[str, ...]:
    result = _RESULTS[lever.status]
    if lever.reason is not None:
        reason = shortened(lever.reason)
        result = reason if lever.status == "failed" else f"{result}: {reason}"
    elif lever.status == "recommended" and lever.support != "confirmed":
        result = "recommended: measured when added"
    speed = MISSING if lever.speedup is None else _estimate(lever.speedup)
    return lever.name, _names(lever.added_to), speed, f"{lever.launches}", result


def _not_measured(tuning: Tuning) -> list[tuple[str, str]]:
    """Levers that were not launched, and why."""
    reasons = {
        "unpromising": "the part it changes takes too little of this job's step",
        "not measured": "the current settings could not be measured"
        if tuning.baseline_failure is not None
        else "cannot be added to the fastest settings"
        if tuning.finished
        else "no time was left",
    }
    left = [lever for lever in tuning.levers if lever.status in reasons]
    left.sort(key=lambda lever: -(lever.may_give or 0.0))
    return [(lever.name, reasons[lever.status] + _may_give(lever)) for lever in left]


def _may_give(lever: TriedLever) -> str:
    """What a lever that was not measured may still give."""
    if lever.may_give is None:
        return ""
    return f"; estimated from the parts of the step: {lever.may_give:.2f}×"


def _other_jobs(tuning: Tuning) -> Section:
    """Larger batches and the like: another job, compared by sample and by how it scales."""
    scaling = any(job.scaling is not None for job in tuning.other_jobs)
    columns = ("job", "speed per sample", *(("speedup over 1 rank",) if scaling else ()), "launches")
    return Section(
        title="Other jobs: they change what is trained, so they are not a faster version of this one",
        table=Table(
            columns=columns,
            rows=tuple(_other_job(job, scaling=scaling) for job in tuning.other_jobs),
            left=frozenset(("job",)),
        ),
        lines=tuple(_of_other_jobs(tuning)),
    )


def _other_job(job: OtherJob, *, scaling: bool) -> tuple[str, ...]:
    over_one = MISSING if job.scaling is None else _estimate(job.scaling)
    name = "now" if job.name == NOW else job.name
    cells = (name, _estimate(job.speedup), *((over_one,) if scaling else ()))
    return (*cells, f"{len(job.configuration.launches)}")


def _of_other_jobs(tuning: Tuning) -> list[str]:
    """How the job scales, and which other one scales best."""
    scaling = {job.name: job.scaling for job in tuning.other_jobs if job.scaling is not None}
    now = scaling.pop(NOW, None)
    if now is None or not scaling:
        return []
    negative = " (slower than one rank)" if now.high is not None and now.high < 1.0 else ""
    once = " (one launch of each)" if tuning.one_launch_each else ""
    ranks = tuning.baseline.world_size
    lines = [f"{ranks} ranks now deliver {_estimate(now)} the speed of one rank{negative}{once}."]
    best = max(scaling, key=lambda name: scaling[name].value)
    least, most = scaling[best].low, now.high
    if least is not None and most is not None and least > most:
        lines.append(f"Of the changed jobs, {best} scales best: {_estimate(scaling[best])}.")
    return lines


def next_after_tuning(tuning: Tuning, path: Path) -> ShownCommand | None:
    """The one command that runs what was found, for the run at `path`, or goes on searching."""
    if tuning.recommended:
        argv = command_on(path, "train", file=TUNED)
        return ShownCommand(label="train with the levers that help", argv=argv)
    if tuning.finished or tuning.one_launch_each or tuning.baseline_failure is not None:
        return None
    if not tuning.budget_ended:
        return ShownCommand(label="continue", argv=resume_argv(path))
    return ShownCommand(label="continue with more time", argv=resume_argv(path, _MORE_TIME_S))


def _estimate(speedup: Estimate) -> str:
    if speedup.low is None or speedup.high is None or not is_useful(speedup):
        return f"{speedup.value:.2f}×"
    return f"{speedup.value:.2f}× [{speedup.low:.2f}, {speedup.high:.2f}]"
