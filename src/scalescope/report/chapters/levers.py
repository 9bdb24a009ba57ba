"""Levers: the speed with each combination of settings, as a forest plot."""

import statistics
from typing import Any

from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.chapter import Chapter, titled_by_run
from scalescope.report.numbers import signed_percent
from scalescope.report.section import Figure, Panel, Section, Series
from scalescope.report.tuning.code import stored_code
from scalescope.report.tuning.sections import CURRENT
from scalescope.results.run_folder import TUNING, read_json

_MOST_POINTS = 50  # of a curve of losses: of more steps, means are drawn
_NOT_COMPARED = "no verdict: at most one launch"
_GROUPS = ("faster", "slower", "no difference", "inconclusive", _NOT_COMPARED)


def chapter(report_input: ReportInput) -> Chapter | None:
    tunings = [
        (analyzed, tuning)
        for analyzed in reversed(report_input.analyzed_runs)
        if (tuning := _tuning(analyzed))
    ]
    figures = titled_by_run(
        report_input,
        (
            (analyzed, figure)
            for number, (analyzed, tuning) in enumerate(tunings)
            if (figure := _figure(analyzed, tuning, number))
        ),
    )
    losses = titled_by_run(
        report_input,
        ((analyzed, figure) for analyzed, tuning in tunings if (figure := _loss_figure(analyzed, tuning))),
    )
    if not tunings:
        return None
    left_out = tuple(
        f"Not tried: {lever.get('lever')}: {lever.get('reason')}"
        for _, tuning in tunings
        if isinstance(tuning.get("inapplicable"), list)
        for lever in tuning["inapplicable"]
        if isinstance(lever, dict)
    )
    scripts = titled_by_run(
        report_input, ((analyzed, part) for analyzed, _ in tunings[1:] for part in stored_code(analyzed.run))
    )  # the newest one's are on the first screen
    sections = (*([Section(details=left_out)] if left_out else []), *scripts)
    return Chapter(
        name="levers",
        title="Effect of each lever",
        order=12,
        sections=sections,
        figures=(*figures, *losses),
    )


def _tuning(analyzed: AnalyzedRun) -> dict[str, Any] | None:
    tuning = read_json(analyzed.run.path / TUNING)
    if not isinstance(tuning, dict):
        return None
    return tuning if isinstance(tuning.get("combinations"), list) else None


def _drawn(tuning: dict[str, Any]) -> list[dict[str, Any]]:
    """What was measured, each with the name it is drawn by; the current settings are the line at 1."""
    named = [
        {**combination, "lever": _name_of(combination)}
        for combination in tuning["combinations"]
        if isinstance(combination, dict) and isinstance(combination.get("levers"), list)
    ]
    return [entry for entry in named if entry["lever"] and isinstance(entry.get("speedup"), float)]


def _name_of(combination: dict[str, Any]) -> str:
    name = " + ".join(map(str, combination["levers"]))
    return f"{name} (the loss differs)" if combination.get("loss_differs") is True else name


def _figure(analyzed: AnalyzedRun, tuning: dict[str, Any], number: int) -> Figure | None:
    tried = _drawn(tuning)
    if not tried:
        return None
    ordered = sorted(tried, key=lambda lever: -float(lever["speedup"]))
    names = tuple(str(lever["lever"]) for lever in ordered)
    series = [_series(group, ordered) for group in _GROUPS]
    speeds = [float(lever["speedup"]) for lever in ordered]
    panel = Panel(
        kind="forest",
        x_label="speed relative to the current settings (×)",
        y_label="",
        series=tuple(drawn for drawn in series if drawn.x),
        names=names,
        x_log=max(speeds) > 2.0 * min(speeds),
    )
    shown = "95 % intervals" if any(lever.get("ci95_speedup") for lever in ordered) else "single launches"
    return Figure(
        name="levers" if number == 0 else f"levers_{number + 1}",
        title=f"Speed with other settings, relative to the current ones ({shown})",
        alt=f"Points with intervals; {names[0]} is the fastest, at {speeds[0]:.2f} times the baseline.",
        panels=(panel,),
        command=analyzed.command,
    )


def _interval(lever: dict[str, Any]) -> tuple[float | None, float | None]:
    interval = lever.get("ci95_speedup")
    if isinstance(interval, list) and len(interval) == 2 and all(isinstance(end, float) for end in interval):
        return interval[0], interval[1]
    return None, None


def _series(group: str, ordered: list[dict[str, Any]]) -> Series:
    rows = [
        (row, lever) for row, lever in enumerate(ordered) if (lever.get("verdict") or _NOT_COMPARED) == group
    ]
    intervals = [_interval(lever) for _, lever in rows]
    return Series(
        label=group,
        x=tuple(float(lever["speedup"]) for _, lever in rows),
        y=tuple(float(row) for row, _ in rows),
        low=tuple(low for low, _ in intervals),
        high=tuple(high for _, high in intervals),
    )


def _loss_figure(analyzed: AnalyzedRun, tuning: dict[str, Any]) -> Figure | None:
    """The losses with the current and the recommended settings, step by step."""
    check = tuning.get("loss_check")
    if not isinstance(check, dict):
        return None
    winner = " + ".join(map(str, tuning.get("winner", ())))
    curves = {CURRENT: _curve(check.get("current")), winner: _curve(check.get("winner"))}
    steps = max(map(len, curves.values()))
    if not steps:
        return None
    together = -(-steps // _MOST_POINTS)
    drawn = tuple(_losses(label, losses, together) for label, losses in curves.items() if losses)
    change = check.get("change")
    ends = f" They differ by {signed_percent(change)} at the end." if isinstance(change, float) else ""
    return Figure(
        name="loss_curves",
        title=f"Loss over {steps} steps of the same samples",
        alt=f"Lines of the loss: {', '.join(line.label for line in drawn)}.{ends}",
        panels=(Panel(kind="lines", x_label="step", y_label="loss", series=drawn),),
        command=analyzed.command,
        notes=() if together == 1 else (f"Each point is the mean of {together} steps.",),
    )


def _curve(losses: object) -> list[float]:
    """Losses as they are stored; anything else is none."""
    is_curve = isinstance(losses, list) and all(isinstance(loss, float) for loss in losses)
    return losses if isinstance(losses, list) and is_curve else []


def _losses(label: str, losses: list[float], together: int) -> Series:
    """Losses as means over this many steps; the last mean may be over fewer."""
    blocks = [losses[start : start + together] for start in range(0, len(losses), together)]
    return Series(
        label=label,
        x=tuple(float(min((number + 1) * together, len(losses))) for number in range(len(blocks))),
        y=tuple(statistics.fmean(block) for block in blocks),
    )
