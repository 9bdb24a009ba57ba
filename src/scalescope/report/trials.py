"""Sections about trials: what would be run, how fast each is, what failed."""

from collections.abc import Container, Iterable
from typing import Literal

from scalescope.analysis.configurations import Configuration
from scalescope.experiment.explanations import NO_COMM, NO_OPTIMIZER, PRELOADED, explained_job, has_ablation
from scalescope.experiment.observed import without_observations
from scalescope.experiment.trial import Trial
from scalescope.report.commands import units_of
from scalescope.report.numbers import MISSING, counted, duration, is_useful, milliseconds, significant
from scalescope.report.section import Section, Table
from scalescope.report.varied import shown_value, varied_settings
from scalescope.results.result import Result
from scalescope.results.run import Run

EstimateBasis = Literal["operation counts", "earlier runs", "timed steps", "windows alone"]
_BASES: dict[EstimateBasis, str] = {
    "operation counts": "estimated from operation counts, not measured). Nothing was run",
    "earlier runs": "estimated from earlier runs on this machine). Nothing was run",
    "windows alone": "what is measured; how long the command takes to start is not known). Nothing was run",
    "timed steps": "estimated from a few steps, which were run for this). Nothing else was run",
}


def plan_section(
    trials: tuple[Trial, ...],
    repeats: int,
    seconds: float,
    once: tuple[Trial, ...] = (),
    formats: tuple[str, ...] = (),
    basis: EstimateBasis = "operation counts",
) -> Section:
    """What --dry-run shows; trials of `once` need no repeats; `formats` are lines about the devices."""
    main = trials[0].benchmark if trials else None
    varied = varied_settings([trial for trial in (*trials, *once) if trial.benchmark == main])
    columns = ("trial", *varied, "measures", "id")
    rows = tuple(
        (trial.label, *(shown_value(trial, name) for name in varied), _purpose(trial), trial.trial_id)
        for trial in (*trials, *once)
    )
    launches = counted(len(trials) * repeats, "launch")
    count = f"{counted(len(trials), 'trial')} × {counted(repeats, 'launch')} = {launches}"
    if once:
        count += f", and {counted(len(once), 'trial')} once"
    about = "at least" if basis == "windows alone" else "about"
    return Section(
        title="Trials",
        table=Table(columns=columns, rows=rows, left=frozenset(columns), optional=("id",)),
        lines=(
            f"{count}, {about} {duration(seconds)} ({_BASES[basis]}.",
            *formats,
        ),
    )


def _purpose(trial: Trial) -> str:
    without = {NO_COMM: "communication", PRELOADED: "waiting for samples", NO_OPTIMIZER: "the optimizer"}
    left_out = [text for name, text in without.items() if has_ablation(trial, name)]
    if left_out:
        return f"training without {' and '.join(left_out)}"
    benchmark = trial.benchmark_card
    return str(benchmark.measures_by_purpose.get(trial.purpose, benchmark.measures))


def side_by_side(measured: tuple[Configuration, ...]) -> Section:
    """All configurations of a sweep in one table, by ranks, batch and what was varied."""
    trials = [configuration.trial for configuration in measured]
    varied = varied_settings(trials)
    columns = ("configuration", *varied, "step (ms)", f"{units_of(measured)}/s", "95 % interval")
    rows = tuple(
        (
            configuration.trial.label,
            *(shown_value(configuration.trial, name) for name in varied),
            milliseconds(configuration.step_time_s.value),
            significant(configuration.speed.value, 4),
            _rate_interval(configuration),
        )
        for configuration in sorted(
            measured, key=lambda configuration: _sort_key(configuration.trial, varied)
        )
    )
    return Section(
        title="Side by side",
        table=Table(columns=columns, rows=rows, left=frozenset(("configuration", *varied))),
    )


def _sort_key(trial: Trial, varied: tuple[str, ...]) -> tuple[object, ...]:
    return trial.world_size, trial.rank_batch_size, *(shown_value(trial, name) for name in varied)


def _rate_interval(configuration: Configuration) -> str:
    rate = configuration.speed
    if rate.low is None or rate.high is None or not is_useful(rate):
        return MISSING
    return f"{significant(rate.low, 4)} to {significant(rate.high, 4)}"


def failure_section(run: Run) -> tuple[Section, ...]:
    """One line for each trial that failed, with its cause and its log; nothing where none did."""
    failed = list(_first_failures(run.results))
    if not failed:
        return ()
    return (Section(title="Failed", lines=tuple(map(failure_line, failed))),)


def _first_failures(results: Iterable[Result]) -> Iterable[Result]:
    first: dict[str, Result] = {}
    for result in results:
        if result.status != "ok" and not is_answer(result):
            first.setdefault(result.trial_id, result)
    return [result for result in first.values() if not explains_failure(result.trial, first)]


def explains_failure(trial: Trial, failed: Container[str]) -> bool:
    """Whether a trial only explains a job that failed itself, by trial ids: its own failure says no more."""
    job = explained_job(trial)
    return job is not None and job.trial_id in failed


def is_answer(result: Result) -> bool:
    """Whether this failure is expected: a batch that does not fit, an optional launch, a spent budget."""
    if result.stopped_by == "budget":
        return True
    benchmark = result.trial.benchmark_card
    if result.status == "oom" and benchmark.oom_is_result:
        return True
    return result.trial.purpose in benchmark.optional_purposes


def failure_line(result: Result) -> str:
    """`script, 2 ranks [0a1b2c]: failed: …`: the same words while it is measured and afterwards."""
    log = f"; log: {result.log}" if result.log else ""
    asked = without_observations(result.trial)  # a launch that failed may have shown nothing
    return f"{asked.label} [{result.trial_id}]: {result.status}: {result.reason}{log}"
