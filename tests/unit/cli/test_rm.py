"""`scalescope rm` removes run folders and nothing else."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from scalescope.results.run_folder import RunFolder, point_latest_at
from scalescope.results.run_record import RunRecord, write_run_record
from tests.builders.calling import called
from tests.builders.studies import comm, memory, scale, standard_run, train, tune
from tests.pipeline.recording import RecordingWatcher, ask
from tests.simulated.launcher import CostModel, FakeLauncher

Rm = Callable[..., SimpleNamespace]


@pytest.fixture
def rm(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rm:
    monkeypatch.chdir(tmp_path)
    return partial(called, capsys, "rm")


def make_run(name: str, day: int = 1) -> Path:
    path = Path("runs", name)
    folder = RunFolder.open(path, resume=False)
    folder.write("trials.jsonl", "x" * 1000)
    write_run_record(path, RunRecord(verb="train", started_at=f"2026-01-{day:02}T00:00:00+00:00"))
    folder.close()
    return path


def answer(monkeypatch: pytest.MonkeyPatch, *, tty: bool, text: str = "") -> None:
    stream = SimpleNamespace(isatty=lambda: tty, readline=lambda: text)
    monkeypatch.setattr("sys.stdin", stream)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda prompt: text)


def test_runs_are_shown_and_removed(rm: Rm) -> None:
    first, second = make_run("first"), make_run("second")
    kept = make_run("kept")
    removed = rm("--yes", str(first), str(second), f"{first}/")
    assert (removed.code, removed.err) == (0, "")
    assert str(first) in removed.out and str(second) in removed.out and "KiB" in removed.out
    assert "Removed 2 runs" in removed.out
    assert list(Path("runs").iterdir()) == [kept]


def test_it_asks_first(rm: Rm, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run("run")
    answer(monkeypatch, tty=True, text="n")
    refused = rm(str(run))
    assert (refused.code, "Nothing was removed." in refused.out, run.is_dir()) == (0, True, True)
    answer(monkeypatch, tty=True, text="y")
    assert rm(str(run)).code == 0
    assert not run.exists()


def test_without_a_terminal_nothing_is_removed_unasked(rm: Rm, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run("run")
    answer(monkeypatch, tty=False, text="y")
    refused = rm(str(run))
    assert (refused.code, "--yes" in refused.err, run.is_dir()) == (2, True, True)


def refusal(rm: Rm, path: object, code: int = 2) -> str:
    """What is said where a run cannot be removed; another one that could be is kept too."""
    other = make_run("other") if not Path("runs/other").exists() else Path("runs/other")
    refused = rm("--yes", str(other), str(path))
    assert (refused.code, refused.out) == (code, "")
    assert other.is_dir()
    return str(refused.err)


def test_what_is_not_a_run_is_refused(rm: Rm, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "experiment.yaml").write_text("batch_size: 3\n")  # a person's own, for many runs
    assert "contains no run" in refusal(rm, folder)
    assert "contains no run" in refusal(rm, "runs")
    assert "no such run folder" in refusal(rm, "nowhere")
    assert "no such run folder" in refusal(rm, folder / "experiment.yaml")
    assert (folder / "experiment.yaml").is_file()


def test_a_link_is_refused_and_its_target_is_kept(rm: Rm) -> None:
    run = make_run("run")
    point_latest_at(run)
    for name in ("runs/latest", "runs/latest/"):
        assert "is a link" in refusal(rm, name)
    assert run.is_dir()


def test_links_inside_are_removed_and_not_followed(rm: Rm, tmp_path: Path) -> None:
    run = make_run("run")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("kept")
    (run / "logs" / "link").symlink_to(tmp_path / "precious")
    (run / "traces").symlink_to(tmp_path / "precious")
    assert rm("--yes", str(run)).code == 0
    assert not run.exists()
    assert (tmp_path / "precious" / "file").read_text() == "kept"


def test_a_run_with_files_of_others_is_refused(rm: Rm) -> None:
    run = make_run("run")
    (run / "model.py").write_text("")
    assert "'model.py'" in refusal(rm, run)
    assert (run / "model.py").is_file()


@pytest.mark.parametrize("name", ["logs/notes.txt", "ranks/0123456789ab.json", "tables/mine.csv", "logs/a/b"])
def test_a_run_with_files_of_others_in_our_subfolders_is_refused(rm: Rm, name: str) -> None:
    run = make_run("run")
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_text("mine")
    for ours in (
        "ranks/0123456789ab-0-1.json",
        "logs/0123456789ab-0-1.log",
        "logs/.0123456789ab-0-1.log.ab_d1234",
    ):
        (run / ours).write_text("")
    assert f"'{'/'.join(Path(name).parts[:2])}'; move them first" in refusal(rm, run)
    assert (run / name).read_text() == "mine"
    shutil.move(run / name, "elsewhere")
    if (run / "logs" / "a").is_dir():
        (run / "logs" / "a").rmdir()
    assert rm("--yes", str(run)).code == 0
    assert not run.exists()


def test_the_current_folder_is_refused(rm: Rm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = make_run("run")
    monkeypatch.chdir(run / "logs")
    refused = rm("--yes", str(tmp_path / run))
    assert (refused.code, "the current folder" in refused.err) == (2, True)
    assert (tmp_path / run).is_dir()


def test_a_run_that_is_being_written_is_refused(rm: Rm) -> None:
    run = make_run("run")
    held = RunFolder.open(run, resume=True)
    try:
        assert "is in use by process" in refusal(rm, run, code=3)
    finally:
        held.close()
    assert rm("--yes", str(run)).code == 0


def test_latest_points_at_the_newest_run_that_is_left(rm: Rm) -> None:
    make_run("old", day=1)
    make_run("newer", day=3)
    newest = make_run("newest", day=5)
    point_latest_at(newest)
    rm("--yes", "runs/old")
    assert Path("runs/latest").readlink() == Path("newest")
    rm("--yes", "runs/newest")
    assert Path("runs/latest").readlink() == Path("newer")
    rm("--yes", "runs/newer")
    assert list(Path("runs").iterdir()) == []


def test_what_every_verb_writes_is_ours(rm: Rm) -> None:
    verbs = {"train": train, "scale": scale, "run": standard_run, "comm": comm, "memory": memory}
    small = {"world_size": [1, 2], "batch_size": 8, "repeats": 1}
    asked = {"comm": {"world_size": 2}, "memory": {"batch_size": [2, 4]}, "scale": small, "run": small}
    for verb, study in verbs.items():
        request = ask(verb, output_dir=f"runs/{verb}", **asked.get(verb, {}))  # type: ignore[arg-type]
        study(request, FakeLauncher(CostModel()), RecordingWatcher())
    levers = {"levers": ("bucket_cap_mb",)}
    tune(
        ask("tune", output_dir="runs/tune", world_size=2, budget="60s"),
        FakeLauncher(CostModel()),
        RecordingWatcher(),
        **levers,
    )
    removed = rm("--yes", *(f"runs/{verb}" for verb in (*verbs, "tune")))
    assert (removed.code, removed.err) == (0, "")
