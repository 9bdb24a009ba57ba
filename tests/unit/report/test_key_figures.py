"""Key figures: each is the value of the verdict or of a table, with a colour only where that is certain."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.statistics import Estimate
from scalescope.analysis.trace.changes import compare_jobs
from scalescope.diagnose.trace_rules import diagnose
from scalescope.report.analyzed_run import AnalyzedRun
from scalescope.report.key_figures import run_figures, trace_change_figures, trace_figures
from scalescope.report.section import KeyFigure
from tests.builders.known_runs import make_run, make_trials
from tests.builders.rank_traces import alone, meeting_job, step


def texts(figures: tuple[KeyFigure, ...]) -> list[tuple[str, str, str | None]]:
    return [(figure.value, figure.label, figure.tone) for figure in figures]


def test_scaling_shows_the_largest_world_size_at_its_best() -> None:
    analyzed = AnalyzedRun(make_run(make_trials(world_size=[1, 2], batch_size=[16, 64])))
    best = max(analyzed.rows, key=lambda row: (row.ranks, row.efficiency.value))
    speed, efficiency, rate = run_figures(analyzed)
    assert speed.value == f"{best.speedup.value:.2f}×" and speed.label.startswith(
        f"speed of 2 ranks at batch {best.batch}"
    )
    assert efficiency.value == f"{round(100 * best.efficiency.value)} %"
    assert rate.value == f"{best.configuration.speed.value:,.0f}"


@pytest.mark.parametrize(("half", "is_doubtful"), [(0.01, False), (0.5, True)])
def test_a_wide_interval_is_not_judged_by_a_colour(half: float, is_doubtful: bool) -> None:
    analyzed = AnalyzedRun(make_run(make_trials(world_size=[1, 2], batch_size=64)))
    rows = [
        dataclasses.replace(row, efficiency=Estimate(0.85, 0.85 - half, 0.85 + half)) for row in analyzed.rows
    ]
    vars(analyzed)["rows"] = tuple(rows)
    assert (run_figures(analyzed)[0].tone == "uncertain") == is_doubtful


def test_training_shows_the_step_and_the_throughput() -> None:
    analyzed = AnalyzedRun(make_run(make_trials(world_size=1, batch_size=64)))
    (fastest,) = analyzed.measured
    values = [figure.value for figure in run_figures(analyzed)]
    assert values == [f"{1e3 * fastest.step_time_s.value:.1f} ms", f"{fastest.speed.value:,.0f}"]


def tuned(path: Path, **known: Any) -> AnalyzedRun:
    run = make_run(make_trials(world_size=1, batch_size=64))
    tried = [
        {"levers": [], "speedup": 1.0, "ci95_speedup": None, "step_time_s": 0.1},
        {"levers": ["compile default"], "speedup": 1.9, "ci95_speedup": [1.8, 2.0], "step_time_s": 0.05},
    ]
    tuning = {"recommended": True, "winner": ["compile default"], "confirmed": None, "combinations": tried}
    (path / "tuning.json").write_text(json.dumps(tuning | known))
    return AnalyzedRun(
        dataclasses.replace(run, path=path, record=dataclasses.replace(run.record, verb="tune"))
    )


def test_tune_shows_the_gain_of_what_it_recommends(tmp_path: Path) -> None:
    assert texts(run_figures(tuned(tmp_path))) == [
        ("1.90×", "the current speed [1.80, 2.00]", "good"),
        ("50.0 ms", "per step, 100 ms before", None),
    ]
    confirmed = {"speedup": 1.85, "ci95_speedup": [1.8, 1.9]}
    assert run_figures(tuned(tmp_path, confirmed=confirmed))[0].value == "1.85×"
    for known in ({"recommended": False}, {"combinations": 7}, {"winner": ["other"]}):
        assert run_figures(tuned(tmp_path, **known)) == ()


def test_traces_show_what_costs_most() -> None:
    job = meeting_job([[0.0] * 4, [0.0] * 4, [0.05] * 4])
    diagnosis = diagnose(job)
    _, compute, first = trace_figures(job, diagnosis)
    assert compute.value == f"{round(100 * job.breakdown['compute_s'] / job.step_s)} %"
    assert (first.label, first.tone) == (diagnosis.findings[0].rule, "poor")


@pytest.mark.parametrize(
    ("after_s", "value", "tone"),
    [(0.2, "+100.0 %", "poor"), (0.05, "-50.0 %", "good"), (0.1, "0.0 %", "uncertain")],
)
def test_compared_traces_show_the_change_of_a_step(after_s: float, value: str, tone: str) -> None:
    changes = compare_jobs(alone(step(0.1), step(0.1)), alone(step(after_s), step(after_s)))
    first, second = trace_change_figures(changes)
    assert (first.value.lstrip("+"), first.tone) == (value.lstrip("+"), tone)
    assert second.label == "per step, 100 ms before"
