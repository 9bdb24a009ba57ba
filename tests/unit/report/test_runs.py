"""The list of runs: order, status, figures, filters, and how it fits a page."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from scalescope.cli import app
from scalescope.report.render.terminal import console, show
from scalescope.report.runs import ListedRun, listed_runs, runs_section
from scalescope.results.run_folder import RunFolder
from scalescope.results.run_record import RunEnd, RunRecord, write_run_record
from tests.builders.runs import make_runs

TRAINING = {"workload": "mlp", "status": "ok", "samples_per_s": 1234.5}


def make_run(path: Path, record: RunRecord, **results: Any) -> Path:
    path.mkdir(parents=True)
    (path / "trials.jsonl").write_text("{}\n")
    write_run_record(path, record)
    if results:
        summary = {"verb": record.verb, "world_size": 2, "config": {"device": "cpu"}, "results": results}
        (path / "results.json").write_text(json.dumps(summary))
    return path


def ended(verb: str, day: int, **end: Any) -> RunRecord:
    return RunRecord(
        verb=verb, started_at=f"2026-01-{day:02}T10:00:00+00:00", end=RunEnd(**end) if end else None
    )


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, ListedRun]:
    """Runs of all kinds, by name; names say nothing about their age."""
    root = tmp_path / "runs"
    make_run(root / "d", ended("train", 1, why="finished", failed=0), training=[TRAINING, {"status": "ok"}])
    scaling = [{"world_size": 1, "speedup": 9.0}, {"world_size": 2, "speedup": 1.62}]
    make_run(root / "a", ended("scale", 2, why="finished", failed=1), training=[TRAINING], scaling=scaling)
    busbw = {"all_reduce": [{"busbw_bytes_per_s": 2e9}, {"busbw_bytes_per_s": 3.21e9}]}
    make_run(root / "c", ended("comm", 3, why="budget", missing=2), communication=busbw)
    make_run(
        root / "b", ended("memory", 4, why="interrupted"), memory=[{"workload": "cnn", "largest_batch": 4096}]
    )
    tuned = make_run(root / "e", ended("tune", 5), training=[TRAINING])
    (tuned / "tuning.json").write_text(json.dumps({"confirmed": {"speedup": 1.125}}))
    (tuned / "experiment.yaml").write_text("workload: my folder/model.py:build\nworld_size: [1, 4]\n")
    (tuned / "results.json").unlink()
    return {run.path.name: run for run in listed_runs(root)}


def test_runs_are_listed_newest_first_by_time(runs: dict[str, ListedRun]) -> None:
    assert list(runs) == ["e", "b", "c", "a", "d"]


def test_every_run_has_its_status(runs: dict[str, ListedRun]) -> None:
    statuses = {name: (run.status, run.is_unfinished) for name, run in runs.items()}
    assert statuses == {
        "d": ("finished", False),
        "a": ("failed", True),
        "c": ("budget", True),
        "b": ("interrupted", True),
        "e": ("killed", True),
    }


def test_every_kind_of_run_has_its_figure(runs: dict[str, ListedRun]) -> None:
    figures = {name: run.figure and run.figure.text for name, run in runs.items()}
    assert figures == {
        "d": "1,234 samples/s",
        "a": "speedup 1.62",
        "c": "3.21 GB/s",
        "b": "batch 4,096",
        "e": "speedup 1.12",
    }


def test_a_run_without_a_summary_shows_what_it_was_asked_for(runs: dict[str, ListedRun]) -> None:
    assert (runs["e"].workloads, runs["e"].ranks) == (("my folder/model.py:build",), 4)
    assert runs["d"].workloads == ("mlp",)


def test_a_run_that_is_being_written_is_running(runs: dict[str, ListedRun], tmp_path: Path) -> None:
    held = RunFolder.open(tmp_path / "runs" / "d", resume=True)
    try:
        assert {run.path.name: run.status for run in listed_runs(tmp_path / "runs")}["d"] == "running"
    finally:
        held.close()


def test_a_row_is_read_from_the_head_of_a_summary_alone(tmp_path: Path) -> None:
    root = make_runs(tmp_path / "runs", ("comm", "memory", "train"))
    listed = list(listed_runs(root))
    assert len(listed) == 3
    summaries = {run.path / "results.json": (run.path / "results.json").read_text() for run in listed}
    for path, text in summaries.items():
        path.write_text(text[: text.index('"results": {') + 20])
    assert list(listed_runs(root)) == listed
    for path, text in summaries.items():  # without a headline, all of it is read
        path.write_text(json.dumps({**json.loads(text), "headline": None}))
    assert list(listed_runs(root)) == listed


@pytest.mark.usefixtures("runs")
def test_rows_that_are_not_asked_for_are_not_read(tmp_path: Path) -> None:
    rows = listed_runs(tmp_path / "runs")
    assert next(rows).path.name == "e"
    (tmp_path / "runs" / "b" / "results.json").write_text(json.dumps({"world_size": 7}))
    assert next(rows).ranks == 7


@pytest.mark.parametrize(
    "headline",
    [
        {"workloads": "a", "trials": [1], "launches": "x", "figure": 3},
        {"workloads": [1, {}], "trials": {"ok": "x"}, "launches": True, "figure": {"kind": "x", "value": 1}},
        {"figure": {"kind": "speedup", "value": "x", "unit": 3}},
        {"figure": {"kind": [], "value": 1}},
    ],
)
def test_a_damaged_headline_leaves_cells_empty(tmp_path: Path, headline: Any) -> None:
    path = make_run(tmp_path / "runs" / "a", ended("train", 1, why="finished", failed=0))
    text = json.dumps({"world_size": [], "headline": headline, "results": {}}, indent=1)
    (path / "results.json").write_text(text.replace('"results": {}', '"results": {\n }'))
    (run,) = listed_runs(tmp_path)
    assert (run.workloads, run.ranks, run.trials, run.launches, run.figure) == ((), None, {}, 0, None)


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as leaving:
        app.main(["list", *arguments])
    out, err = capsys.readouterr()
    assert (leaving.value.code or 0, err) == (0, "")
    return out


FILTERS = {
    (): "ebcad",
    ("--verb=scale",): "a",
    ("--workload=MODEL.py",): "e",
    ("--status=finished",): "d",
    ("--status=unfinished",): "ebca",
    ("--since=2026-01-03",): "ebc",
    ("--since=2026-01-03", "--status=budget"): "c",
    ("--limit=2",): "eb",
    ("--since=1m",): "",
}


@pytest.mark.usefixtures("runs")
def test_filters(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shown = {
        flags: "".join(
            Path(row["path"]).name
            for row in json.loads(listed(capsys, str(tmp_path / "runs"), "--json", *flags))
        )
        for flags in FILTERS
    }
    assert shown == FILTERS


def test_before_the_first_run_there_is_nothing_to_list(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "No runs below runs." in listed(capsys)


@pytest.mark.usefixtures("runs")
def test_filters_that_match_nothing_say_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "No runs like this below" in listed(capsys, str(tmp_path), "--verb=slurm")


@pytest.mark.parametrize("name", ["20261116-031500-train", "x" * 70, "my proj ünï"])
def test_the_list_fits_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    long = {**TRAINING, "workload": f"folder/{'long' * 12}.py:build"}
    make_run(Path("runs", name), ended("train", 1, why="ranks_lost"), training=[long])
    make_run(Path("runs/other"), ended("train", 1, why="interrupted"), training=[TRAINING])
    stream = io.StringIO()
    show((runs_section(listed_runs(Path("runs")), Path("runs")),), console(stream))
    lines = stream.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= 80
    if len(name) < 60:  # a longer name is folded
        (row,) = (line for line in lines if name in line)
        assert [word for word in ("runs/", "long", "1,234 samples/s", "ranks lost") if word not in row] == []
    assert sum(line.count(name[0]) for line in lines) >= name.count(name[0])
