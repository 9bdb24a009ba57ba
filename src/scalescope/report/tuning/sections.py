"""The result of `tune`: the sentence, what was tried, what adds up, and the line that runs it."""

from dataclasses import dataclass
from pathlib import Path

from scalescope.analysis.statistics import Estimate
from scalescope.analysis.tuning.lever_comparison import LeverComparison
from scalescope.analysis.tuning.search import Attempt
from scalescope.analysis.verdicts import LEAST_EFFECT
from scalescope.catalog.cards import all_settings
from scalescope.experiment.trial import Trial
from scalescope.report.numbers import (
    MISSING,
    counted,
    data_size,
    detectable,
    detection_limit,
    is_useful,
    percent,
    shortened,
    signed_percent,
)
from scalescope.report.section import Command, Section, Table
from scalescope.report.tuning.plan import left_out_section
from scalescope.results.run_commands import command_on
from scalescope.results.run_folder import TUNED
from scalescope.results.run_record import RunRecord

NOW = ""  # the baseline's name among jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The results of a tuning run."""

    levers: tuple[tuple[str, str, str], ...]  # (setting and value, trial id, what it changes)
    inapplicable: tuple[tuple[str, str], ...]
    baseline: Trial
    singles: tuple[LeverComparison, ...]
    dropped: frozenset[str]
    failed: dict[str, str]
    scaling: dict[str, Estimate]  # over one rank, by lever and value: of other jobs, and of NOW
    first: str | None  # the lever that others were added to
    attempts: tuple[Attempt, ...]
    winner: frozenset[str]
    final: LeverComparison | None
    threshold: float
    finished: bool
    one_launch_each: bool = False  # by ranks that stay the same processes: there is no verdict

    @property
    def recommended(self) -> bool:
        """Whether new launches confirmed the winner and its loss; nothing else is worth running."""
        return self.final is not None and self.final.verdict == "faster" and not self.final.loss_differs


_MORE_LAUNCHES = 10
_SPEED = "speedup"
_SCALING = "speedup over 1 rank"
_DETECTABLE = "detectable change"
_ORDER = {"faster": 0, "no difference": 1, "inconclusive": 2, "slower": 3, "failed": 4, MISSING: 5}


def tuning_sections(tuning: Tuning) -> tuple[Section, ...]:
    """Verdict first, then the table of everything tried, then the combinations and what does not apply."""
    sections = [Section(lines=(verdict(tuning), *_of_other_jobs(tuning))), _tried(tuning)]
    if tuning.attempts:
        sections.append(_combined(tuning))
    return (*sections, *left_out_section(tuning.inapplicable))


def verdict(tuning: Tuning) -> str:
    """One sentence: what to change and what it gives, or that no lever was found to be faster."""
    ended = "" if tuning.finished else " The search ended early; continue with --resume."
    if tuning.final is not None and tuning.recommended:
        return f"{_names(tuning.winner)} is faster: {_times(tuning.final)} the current speed.{ended}"
    if tuning.final is not None and tuning.final.verdict == "faster":
        change = signed_percent(tuning.final.loss_change or 0.0, 0)
        return (
            f"{_names(tuning.winner)} is faster ({_times(tuning.final)}), but its loss differs ({change}): "
            f"not recommended.{ended}"
        )
    if tuning.final is not None:
        return (
            f"{_names(tuning.winner)} was fastest in the search, but new launches did not confirm it "
            f"({_times(tuning.final)}).{ended}"
        )
    if tuning.winner:
        state = "new launches of it failed" if tuning.finished else "this is not confirmed yet"
        return f"{_names(tuning.winner)} was fastest in the search, but {state}.{ended}"
    if tuning.baseline.trial_id in tuning.failed:
        return f"The baseline could not be measured: {tuning.failed[tuning.baseline.trial_id]}"
    if not tuning.singles:
        return f"Nothing could be compared{'' if tuning.finished else ' yet'}.{ended}"
    if tuning.one_launch_each:
        return f"{_of_single_launches(tuning)}{ended}"
    faster = [
        single
        for single in tuning.singles
        if single.verdict == "faster" and _changes_job(single, tuning.baseline)
    ]
    if faster:
        named = ", ".join(f"{_moved(single, tuning.baseline)} {_times(single)}" for single in faster)
        return f"Faster, but another job than before (it changes what is trained): {named}.{ended}"
    once = sum(len(single.candidate.launches) < 2 for single in tuning.singles)
    unsure = sum(single.verdict == "inconclusive" for single in tuning.singles) - once
    doubt = f" {counted(unsure, 'lever')} {_are(unsure)} inconclusive: too noisy." if unsure else ""
    if once:
        doubt += f" {counted(once, 'lever')} had one launch and no verdict; a larger --budget allows more."
    return f"No lever was found to be faster.{doubt}{ended}"


def _moved(single: LeverComparison, baseline: Trial) -> str:
    """The settings in which a candidate differs from the baseline."""
    settings = single.candidate.trial.settings
    return " + ".join(f"{name} {settings[name]}" for name in _moved_names(single, baseline))


def _moved_names(single: LeverComparison, baseline: Trial) -> list[str]:
    settings, before = single.candidate.trial.settings, baseline.settings
    return [name for name, value in settings.items() if before.get(name) != value]


def _changes_job(single: LeverComparison, baseline: Trial) -> bool:
    """Whether a candidate trains something else than the baseline."""
    known = all_settings(baseline.benchmark)
    levers = [known[name][0].lever for name in _moved_names(single, baseline) if name in known]
    return any(lever is not None and lever.changes == "the job" for lever in levers)


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _of_single_launches(tuning: Tuning) -> str:
    """What was fastest, that one launch is not a verdict, and how to get one."""
    best = fastest_so_far(tuning)
    fastest = "No lever was faster" if best is None else f"{best[0]} was fastest ({best[1]:.2f}×)"
    return (
        f"{fastest}, but this is not a verdict: under torchrun or srun there is a single launch of each. "
        "For a verdict run scalescope tune on one machine without torchrun or srun, or scalescope train "
        "--repeats 5 --launcher slurm with and without the lever."
    )


def fastest_so_far(tuning: Tuning) -> tuple[str, float] | None:
    """The lever with the highest speed that does the same job; None where none is above the baseline's."""
    same_job = {trial: text for text, trial, changes in tuning.levers if changes != "the job"}
    speeds = {
        same_job[single.candidate.trial.trial_id]: single.speedup.value
        for single in tuning.singles
        if single.candidate.trial.trial_id in same_job and not single.loss_differs
    }
    best = max(speeds.items(), key=lambda pair: pair[1], default=None)
    return best if best is not None and best[1] > 1.0 + LEAST_EFFECT else None


def _of_other_jobs(tuning: Tuning) -> list[str]:
    """How the job scales, and which other one scales best; nothing where none was asked for."""
    others = {name: speedup for name, speedup in tuning.scaling.items() if name != NOW}
    if NOW not in tuning.scaling or not others:
        return []
    ranks = tuning.baseline.world_size
    now = tuning.scaling[NOW]
    negative = " (slower than one rank)" if now.high is not None and now.high < 1.0 else ""
    best = max(others, key=lambda name: others[name].value)
    once = " (one launch of each)" if tuning.one_launch_each else ""
    lines = [f"{ranks} ranks now deliver {_estimate(now)} the speed of one rank{negative}{once}."]
    least, most = others[best].low, now.high
    if least is not None and most is not None and least > most:
        lines.append(
            f"Of the changed jobs, {best} scales best: {_estimate(others[best])} the speed of one rank. "
            "It changes the work itself; it does not make this job faster."
        )
    return lines


def next_after_tuning(tuning: Tuning, path: Path, record: RunRecord) -> Command | None:
    """The one command that runs what was found, for the run at `path`."""
    if tuning.recommended:
        argv = command_on(path, "train", file=TUNED)
        return Command(label="train with the levers that help", argv=argv)
    remedies = [
        single.remedy
        for single in tuning.singles
        if single.remedy is not None and len(single.candidate.launches) > 1
    ]
    if remedies:
        window = tuning.baseline.window_s
        repeats = max((_MORE_LAUNCHES, *(remedy.launches or 0 for remedy in remedies)))
        changes = {"repeats": repeats, **({} if window is None else {"window": 2.0 * window})}
        argv = command_on(path, "tune", changes, record.flags)
        return Command(label="more and longer launches detect smaller differences", argv=argv)
    return None


def _tried(tuning: Tuning) -> Section:
    judged = {single.candidate.trial.trial_id: single for single in tuning.singles}
    rows = [
        {"lever": text, **_cells(tuning, text, trial, changes, judged.get(trial))}
        for text, trial, changes in tuning.levers
    ]
    speeds = {text: -judged[trial].speedup.value for text, trial, _ in tuning.levers if trial in judged}
    rows.sort(
        key=lambda row: (row["lever"] not in speeds, _ORDER[row["verdict"]], speeds.get(row["lever"], 0.0))
    )
    scaling = (_SCALING,) if tuning.scaling else ()
    limit = () if tuning.one_launch_each else (_DETECTABLE,)
    columns = (
        "lever",
        "verdict",
        _SPEED,
        *scaling,
        *limit,
        "memory",
        "GPU busy",
        "loss change",
        "remark",
    )
    shown = "one launch each, so no intervals" if tuning.one_launch_each else "95 % intervals in brackets"
    return Section(
        title=f"Compared with {tuning.baseline.label} · 1.00× is the current speed, {shown}",
        table=Table(
            columns=columns,
            rows=tuple(tuple(row.get(name, MISSING) for name in columns) for row in rows),
            left=frozenset(("lever", "verdict", "remark")),
            optional=("memory", "GPU busy", "loss change", *limit),
            expert=frozenset(limit),
        ),
        details=detection_limit(single.smallest_detectable for single in tuning.singles),
    )


def _cells(
    tuning: Tuning, text: str, trial_id: str, changes: str, comparison: LeverComparison | None
) -> dict[str, str]:
    """What is known of a lever, by column."""
    if comparison is None:
        tried = any(attempt.text == text and attempt.launches for attempt in tuning.attempts)
        left = "slow to start: only tried in combinations" if tried else "not measured: out of time"
        reason = shortened(tuning.failed.get(trial_id, left if tuning.attempts else "not measured"))
        return {"verdict": "failed" if trial_id in tuning.failed else MISSING, "remark": reason}
    memory, busy = comparison.candidate.peak_memory_bytes, comparison.candidate.telemetry.gpu_utilization
    return {
        "verdict": comparison.verdict if len(comparison.candidate.launches) > 1 else MISSING,
        _SPEED: _times(comparison),
        _SCALING: _estimate(tuning.scaling[text]) if text in tuning.scaling else MISSING,
        _DETECTABLE: detectable(comparison.smallest_detectable),
        "memory": MISSING if memory is None else data_size(memory),
        "GPU busy": MISSING if busy is None else percent(busy),
        "loss change": MISSING if comparison.loss_change is None else signed_percent(comparison.loss_change),
        "remark": "; ".join(_remarks(tuning, trial_id, changes, comparison)),
    }


def _remarks(tuning: Tuning, trial_id: str, changes: str, comparison: LeverComparison) -> list[str]:
    launches = len(comparison.candidate.launches)
    remarks = [] if launches > 1 else ["one launch: no verdict"]
    if changes == "the job":
        remarks.append("changes the job: compared per sample")
    elif comparison.loss_differs:
        remarks.append("the loss differs")
    if trial_id in tuning.dropped:
        remarks.append(f"dropped after {counted(launches, 'launch')}")
    return remarks


def _combined(tuning: Tuning) -> Section:
    rows = [_first_step(tuning), *map(_step, tuning.attempts)]
    columns = ("combination", "vs previous step", "launch pairs", "decision")
    table = Table(columns=columns, rows=tuple(rows), left=frozenset(("combination", "decision")))
    return Section(title="Combinations: levers added one by one, then each removed again", table=table)


def _first_step(tuning: Tuning) -> tuple[str, ...]:
    """The lever that the others were added to."""
    trial = next(trial for text, trial, _ in tuning.levers if text == tuning.first)
    best = next(single for single in tuning.singles if single.candidate.trial.trial_id == trial)
    launches = len(best.candidate.launches)
    return f"with {tuning.first}", f"{best.speedup.value:.2f}×", f"{launches}", "fastest single lever"


def _step(attempt: Attempt) -> tuple[str, ...]:
    name = f"{'with' if attempt.adds else 'without'} {attempt.text}"
    if attempt.speedup is None:
        return name, MISSING, "0", "out of time: left out" if attempt.adds else "out of time: kept"
    ratio = attempt.speedup if attempt.adds else 1.0 / attempt.speedup
    why = ": the loss differs" if attempt.loss_differs and not attempt.kept else ""
    return name, f"{ratio:.2f}×", f"{attempt.launches}", "kept" if attempt.kept else f"left out{why}"


def _names(winner: frozenset[str]) -> str:
    return " + ".join(sorted(winner))


def _times(comparison: LeverComparison) -> str:
    return _estimate(comparison.speedup)


def _estimate(speedup: Estimate) -> str:
    if speedup.low is None or speedup.high is None or not is_useful(speedup):
        return f"{speedup.value:.2f}×"
    return f"{speedup.value:.2f}× [{speedup.low:.2f}, {speedup.high:.2f}]"
