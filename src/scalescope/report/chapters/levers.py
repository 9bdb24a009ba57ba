"""Levers: what each setting does to the speed, as a forest plot."""

from typing import Any

from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.chapter import Chapter
from scalescope.report.render.figure import Figure, Panel, Series
from scalescope.report.section import Section
from scalescope.results.run_folder import TUNING, read_json

_NOT_JUDGED = "not judged: one launch"
_GROUPS = ("faster", "slower", "no difference", "inconclusive", _NOT_JUDGED)


def chapter(report_input: ReportInput) -> Chapter | None:
    found = [
        (analyzed, tuning)
        for analyzed in reversed(report_input.analyzed_runs)
        if (tuning := _tuning(analyzed))
    ]
    figures = tuple(
        figure
        for number, (analyzed, tuning) in enumerate(found)
        if (figure := _figure(analyzed, tuning, number))
    )
    if not found:
        return None
    lines = tuple(str(tuning["verdict"]) for _, tuning in found if isinstance(tuning.get("verdict"), str))
    left_out = tuple(
        f"Not tried: {one.get('lever')}: {one.get('reason')}"
        for _, tuning in found
        for one in tuning.get("inapplicable", ())
        if isinstance(one, dict)
    )
    sections = (Section(lines=lines, details=left_out),)
    return Chapter(name="levers", title="What each lever does", order=90, sections=sections, figures=figures)


def _tuning(analyzed: AnalyzedRun) -> dict[str, Any] | None:
    found = read_json(analyzed.run.path / TUNING)
    return found if isinstance(found, dict) and isinstance(found.get("tried"), list) else None


def _figure(analyzed: AnalyzedRun, tuning: dict[str, Any], number: int) -> Figure | None:
    tried = [
        one for one in tuning["tried"] if isinstance(one, dict) and isinstance(one.get("speedup"), float)
    ]
    confirmed = tuning.get("confirmed")
    if isinstance(confirmed, dict) and isinstance(confirmed.get("speedup"), float):
        tried.append({**confirmed, "lever": "confirmed: " + " + ".join(map(str, tuning.get("winner", ())))})
    if not tried:
        return None
    ordered = sorted(tried, key=lambda one: -float(one["speedup"]))
    names = tuple(str(one["lever"]) for one in ordered)
    series = [_series(group, ordered) for group in _GROUPS]
    speeds = [float(one["speedup"]) for one in ordered]
    panel = Panel(
        kind="forest",
        x_label="speed against the baseline (×)",
        y_label="",
        series=tuple(drawn for drawn in series if drawn.x),
        names=names,
        x_log=max(speeds) > 2.0 * min(speeds),
    )
    shown = "95 % intervals" if any(one.get("ci95_speedup") for one in ordered) else "one launch each"
    return Figure(
        name="levers" if number == 0 else f"levers_{number + 1}",
        title=f"Speed of each lever against the baseline, {shown}",
        alt=f"Points with intervals: {names[0]} is fastest at {speeds[0]:.2f} times the baseline.",
        panels=(panel,),
        command=analyzed.command,
    )


def _interval(one: dict[str, Any]) -> tuple[float | None, float | None]:
    found = one.get("ci95_speedup")
    if isinstance(found, list) and len(found) == 2 and all(isinstance(end, float) for end in found):
        return found[0], found[1]
    return None, None


def _series(group: str, ordered: list[dict[str, Any]]) -> Series:
    own = [(place, one) for place, one in enumerate(ordered) if (one.get("verdict") or _NOT_JUDGED) == group]
    intervals = [_interval(one) for _, one in own]
    return Series(
        label=group,
        x=tuple(float(one["speedup"]) for _, one in own),
        y=tuple(float(place) for place, _ in own),
        low=tuple(low for low, _ in intervals),
        high=tuple(high for _, high in intervals),
    )
