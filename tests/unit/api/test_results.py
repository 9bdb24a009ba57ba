"""Runs from Python: cheap to import, rows of plain values."""

import html
from pathlib import Path
from typing import Any

import pytest

import scalescope
from scalescope.diagnose import step_facts
from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from tests.builders.steps import halves_of
from tests.builders.studies import scale
from tests.pipeline.recording import RecordingWatcher, ask
from tests.simulated.launcher import CostModel, FakeLauncher


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One and two ranks; the second launch of two ranks died. The run is only read."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(folder))
        environment.setenv("XDG_DATA_HOME", str(folder))
        environment.delenv("SCALESCOPE_LEDGER", raising=False)
        make_run(folder / "run")
    return folder / "run"


def make_run(path: Path) -> None:

    def fail(trial: Trial, launch: int) -> Outcome | None:
        died = trial.world_size == 2 and launch == 1 and trial.settings["benchmark"] == "train"
        return Outcome(status="failed", reason="died") if died else None

    launcher = FakeLauncher(CostModel(exposed_comm_s={2: 0.020}, bytes_per_s=2e8), outcomes=fail)
    asked = {"world_size": [1, 2], "batch_size": 50, "repeats": 3, "env.A": "x"}
    scale(ask("scale", output_dir=str(path), **asked), launcher, RecordingWatcher())


def is_plain(rows: list[dict[str, Any]]) -> bool:
    return all(
        value is None or isinstance(value, str | int | float) for row in rows for value in row.values()
    )


def test_every_launch_is_a_row(path: Path) -> None:
    run = scalescope.load(path)
    rows = run.trials()
    assert run.path == path
    assert is_plain(rows)
    assert len(rows) == len(run.run.results)
    assert {row["status"] for row in rows} == {"ok", "failed"}
    assert {row["env.A"] for row in rows if row["benchmark"] == "train"} == {"x"}
    single = next(row for row in rows if row["strategy"] == "single")
    assert single["mean_step_time_s"] == pytest.approx(0.020)
    assert single["samples_per_s"] == pytest.approx(50 / 0.020)
    assert (single["world_size"], single["batch_size"], single["measured_steps"]) == (1, 50, 5)
    failed = next(row for row in rows if row["status"] == "failed")
    assert (failed["reason"], failed["samples_per_s"]) == ("died", None)


def test_scaling_is_a_row_for_each_world_size_and_findings_are_rows(path: Path) -> None:
    rows = scalescope.load(path).scaling()
    assert is_plain(rows)
    assert [row["ranks"] for row in rows] == [1, 2]
    two = rows[1]
    assert two["speedup"] == pytest.approx(1.0)
    assert two["efficiency"] == pytest.approx(0.5)
    assert two["lost_ranks_communication"] == pytest.approx(1.0)
    assert two["delivered_ranks"] == pytest.approx(1.0)
    assert two["launches"] == 2
    findings = scalescope.load(path).findings()
    assert findings and is_plain(findings)
    assert {"rule", "claim", "severity", "lost_ranks", "command"} <= findings[0].keys()


def test_no_such_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such run folder"):
        scalescope.load(tmp_path / "none")


def test_the_parts_of_a_step_are_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_facts, "step_waterfall", halves_of)
    rows = scalescope.load(path).steps()
    assert is_plain(rows)
    single = [row for row in rows if row["strategy"] == "single"]
    assert [row["part"] for row in single] == ["forward", "idle: after a synchronization"]
    assert [row["share"] for row in single] == [0.5, 0.5]
    assert single[0]["time_s"] == pytest.approx(0.010)
    assert single[0]["ideal_step_time_s"] == pytest.approx(0.002)


def test_a_run_is_loaded_as_the_result_of_its_verb(path: Path) -> None:
    run = scalescope.load(path)
    assert type(run) is scalescope.Scaling
    assert run.rows() == run.scaling()
    assert run.headline == run.report.headline
    assert run.exit_code == 4  # a launch died
    assert repr(run) == f"<Scaling {path}: {run.headline}>"


def test_text_is_what_the_terminal_shows(path: Path) -> None:
    run = scalescope.load(path)
    lines = str(run).splitlines()
    assert any("weak scaling" in line for line in lines)
    assert f"In short: {run.headline}" in lines
    assert lines[-1] == f"Results: {path / 'results.json'}"
    assert "In short" not in run.table()
    assert len(run.table(verbose=True)) > len(run.table())
    narrow, wide = (run.table(**width).partition("\nranks ")[2] for width in ({"width": 60}, {}))
    assert max(map(len, narrow.splitlines()[:3])) <= 60 < max(map(len, wide.splitlines()[:3]))


def test_a_notebook_gets_the_same_sections_as_html(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    run = scalescope.load(path)
    assert "weak scaling" in run.table() and "\x1b" not in run.table()  # as text, nothing is displayed
    page = run._repr_html_()
    assert "<table>" in page and "In short: " in page
    assert "<script" not in page and "http" not in page
    for section in run.report.sections:
        assert section.title is None or html.escape(section.title) in page
