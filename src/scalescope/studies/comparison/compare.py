"""`compare`: whether a run is slower than an earlier one, or how several runs lie beside each other."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalescope.analysis.comparison.environments import Difference, differences, other_hardware
from scalescope.analysis.comparison.runs import (
    RunComparison,
    compare_runs,
    full_configurations,
    setting_differences,
)
from scalescope.analysis.comparison.side_by_side import MatchedRows, side_by_side
from scalescope.analysis.configurations import configurations
from scalescope.analysis.run_spread import RunSpread
from scalescope.analysis.scaling.rows import scaling_rows
from scalescope.analysis.verdicts import INCONCLUSIVE
from scalescope.errors import BadInput, CannotRun, ExitCode
from scalescope.report.chapter import Chapter, answer_chapters
from scalescope.report.comparison.side_by_side import (
    SideBySide,
    side_by_side_figure,
    side_by_side_json,
    side_by_side_sections,
)
from scalescope.report.comparison.two_runs import (
    Compared,
    comparison_figure,
    comparison_json,
    comparison_sections,
    what_decides,
)
from scalescope.report.comparison.variants import sides_text
from scalescope.report.key_figures import comparison_figures
from scalescope.report.numbers import counted
from scalescope.report.section import Section
from scalescope.results.run import Run, load_run
from scalescope.studies.comparison.old_code import changed_code
from scalescope.studies.comparison.workload_files import file_differences
from scalescope.studies.runs.run_history import spread_between


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonReport:
    """What to show, what to write, and the exit code."""

    sections: tuple[Section, ...]
    data: dict[str, Any]
    exit_code: int = ExitCode.OK
    chapters: tuple[Chapter, ...] = ()  # of its page


def compare(
    base: Path,
    new: Path,
    threshold: float = 0.03,
    *,
    any_hardware: bool = False,
    spread: RunSpread | None = None,
    fail_inconclusive: bool = False,
) -> ComparisonReport:
    """Judge every configuration that both runs have, and variants of one job; a regression misses the gate.

    `spread` is the run-to-run variation; by default, that of the user's earlier runs.
    """
    before, after = load_comparable(base), load_comparable(new)
    differing = differences(before.environment, after.environment)
    _check_hardware(before, after, differing, any_hardware=any_hardware)
    between = spread_between(before, after) if spread is None else spread
    comparison = compare_runs(
        before.results, after.results, threshold, any_hardware=any_hardware, spread=between
    )
    _check_common(before, after, comparison)
    names = _names((before, after))
    compared = Compared(
        base=names[0],
        new=names[1],
        comparison=comparison,
        differences=(*differing, *file_differences(before, after)),
        notes=(*_unrecorded((before, after)), *before.warnings, *after.warnings),
        paths=(base, new),
        can_interleave=_can_interleave(before, after, comparison),
    )
    return report_of_comparison(compared, fail_inconclusive=fail_inconclusive)


def report_of_comparison(compared: Compared, *, fail_inconclusive: bool) -> ComparisonReport:
    """What a comparison shows, and whether its gate is passed."""
    exit_code = ExitCode.OK
    comparison = compared.comparison
    if fail_inconclusive and (comparison.with_verdict(INCONCLUSIVE) or comparison.other_work):
        exit_code = ExitCode.INVALID
    if comparison.gate_missed:
        exit_code = ExitCode.GATE_MISSED
    sections = comparison_sections(compared)
    to_do = what_decides(compared)
    rest = [section for section in sections[1:] if section not in to_do]
    return ComparisonReport(
        sections=sections,
        data=comparison_json(compared),
        exit_code=exit_code,
        chapters=answer_chapters(
            (sections[0], *to_do), rest, (comparison_figure(compared),), comparison_figures(comparison)
        ),
    )


def _can_interleave(before: Run, after: Run, comparison: RunComparison) -> bool:
    """Whether the two sides can be told apart when both are measured now: by settings, or by a commit."""
    pairs = [(config.before.trial, config.after.trial) for config in comparison.judged]
    if any(old.trial_id != new.trial_id for old, new in pairs):
        return True
    return any(changed_code(before, after, new) is not None for _, new in pairs[:1])


def show_side_by_side(paths: Sequence[Path]) -> ComparisonReport:
    """Show how runs scale beside each other, on whatever machines they were made."""
    runs = tuple(load_comparable(path) for path in paths)
    rows = [scaling_rows(configurations(run.results)) for run in runs]
    for run, row in zip(runs, rows, strict=True):
        if not row:
            raise BadInput(f"compare: {run.path} has no training results to compare")
    matched = side_by_side(rows)
    if not matched.groups:
        raise BadInput(
            f"compare: these runs have no job in common; of {runs[0].path} and {runs[1].path} "
            f"{_what_differs(runs[0], runs[1])}"
        )
    names = _names(runs)
    sides = SideBySide(
        runs=names,
        groups=matched.groups,
        alone=matched.alone,
        differences=tuple(
            (*differences(runs[0].environment, run.environment), *file_differences(runs[0], run))
            for run in runs
        ),
        notes=(
            *_without_partner(names, runs, matched),
            *_not_shown(names, runs),
            *_unrecorded(runs),
            *(warning for run in runs for warning in run.warnings),
        ),
    )
    sections = side_by_side_sections(sides)
    return ComparisonReport(
        sections=sections,
        data=side_by_side_json(sides),
        chapters=answer_chapters(sections[:1], sections[1:], (side_by_side_figure(sides),)),
    )


def _without_partner(names: Sequence[str], runs: Sequence[Run], matched: MatchedRows) -> tuple[str, ...]:
    """Runs that share no job with another one, and in what they differ from the first that does."""
    shared = sorted({member.run for group in matched.groups for member in group.members})
    first = shared[0]
    return tuple(
        f"{name} has no job in common with another run; of {names[first]} and {name} "
        f"{_what_differs(runs[first], run)}."
        for number, (name, run) in enumerate(zip(names, runs, strict=True))
        if number not in shared
    )


def _not_shown(names: Sequence[str], runs: Sequence[Run]) -> tuple[str, ...]:
    """What a run holds beside finished training: launches that failed, and other benchmarks."""
    notes = []
    for name, run in zip(names, runs, strict=True):
        failed = [result for result in run.results if result.status != "ok"]
        if failed:
            of_all = f"{len(failed)} of {counted(len(run.results), 'launch')}"
            notes.append(f"{name}: {of_all} failed and {'is' if len(failed) == 1 else 'are'} not shown.")
    others = {r.trial.benchmark for run in runs for r in run.of_status("ok") if not r.trial.is_training}
    if others:
        notes.append(
            "Only training is shown side by side; two runs at a time can also be compared in "
            f"{' and '.join(sorted(others))}."
        )
    return tuple(notes)


def load_comparable(path: Path) -> Run:
    if not path.exists() and path.name == "latest":
        raise BadInput(f"compare: {path}: no run exists yet; give a run folder")
    run = load_run(path)
    if not run.of_status("ok"):
        raise BadInput(f"compare: {path} has no successful launch")
    return run


def _check_hardware(
    before: Run, after: Run, differing: tuple[Difference, ...], *, any_hardware: bool
) -> None:
    hardware = other_hardware(differing)
    if hardware and not any_hardware:
        words = "; ".join(
            f"{difference.name}: {difference.before} and {difference.after}" for difference in hardware
        )
        raise CannotRun(
            f"compare: {before.path} and {after.path} were measured on different hardware ({words}); "
            "--any-hardware compares them anyway"
        )


def _check_common(before: Run, after: Run, comparison: RunComparison) -> None:
    if comparison.has_nothing_in_common:
        _check_holds_speeds(before)
        _check_holds_speeds(after)
        left, right = (
            [config.trial for config in full_configurations(run.results)] for run in (before, after)
        )
        raise BadInput(
            f"compare: {before.path} and {after.path} have no configuration in common, and how they "
            f"correspond is not clear: {sides_text(left, right)}; measure one configuration per run"
        )


def _check_holds_speeds(run: Run) -> None:
    """A run that has nothing in common with itself measured something else, for instance memory."""
    if compare_runs(run.results, run.results, threshold=0.03).has_nothing_in_common:
        measured = sorted({result.trial.benchmark_card.measures for result in run.of_status("ok")})
        raise BadInput(
            f"compare: {run.path} measured {' and '.join(measured)}, and compare judges speed; "
            f"scalescope explain {shlex.quote(str(run.path))} shows what it measured"
        )


def _what_differs(before: Run, after: Run) -> str:
    """The settings in which the two nearest configurations differ."""
    left, right = full_configurations(before.results), full_configurations(after.results)
    nearest = min(
        (setting_differences(old.trial, new.trial) for old in left for new in right), key=len, default=()
    )
    if not nearest:
        return "they measured different things"
    words = [f"{name} ({here} / {there})" for name, here, there in nearest]
    return f"the nearest two differ in {', '.join(words)}"


def _unrecorded(runs: Sequence[Run]) -> tuple[str, ...]:
    """Runs that do not say where they were made."""
    return tuple(f"The machine of {run.path} is not recorded." for run in runs if not run.environment)


def _names(runs: Sequence[Run]) -> tuple[str, ...]:
    """The folders' own names where they tell the runs apart, else the paths as given; a run that is given
    twice is numbered."""
    short = [run.path.resolve().name for run in runs]
    names = short if len(set(short)) == len(short) else [str(run.path) for run in runs]
    counts = [names[:number].count(name) + 1 for number, name in enumerate(names)]
    return tuple(
        name if count == 1 else f"{name} ({count})" for name, count in zip(names, counts, strict=True)
    )
