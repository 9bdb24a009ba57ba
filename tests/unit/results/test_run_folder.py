"""The run folder: one writer at a time, taken over from the dead, found again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalescope.errors import BadInput, CannotRun, StorageError
from scalescope.results.run import load_run
from scalescope.results.run_folder import (
    RunFolder,
    find_runs,
    new_run_path,
    point_latest_at,
    read_json,
)
from tests.builders.lines import make_result

HOLD = """
import sys, time
from pathlib import Path
from scalescope.results.run_folder import RunFolder
folder = RunFolder.open(Path(sys.argv[1]), resume=True)
print("held", flush=True)
time.sleep(600)
"""


def holder_of(path: Path) -> "subprocess.Popen[str]":
    """Another process that holds the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_new_folder_has_its_parts(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path / "a" / "b", resume=False)
    assert (tmp_path / "a" / "b" / "ranks").is_dir()
    assert (tmp_path / "a" / "b" / "logs").is_dir()
    assert folder.rank_file("id", 2, 3) == tmp_path / "a" / "b" / "ranks" / "id-2-3.json"
    assert folder.log_file("id", 2, 3) == tmp_path / "a" / "b" / "logs" / "id-2-3.log"
    folder.close()


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, resume=False)
    results = (make_result(launch=0), make_result(launch=1, status="failed", reason="why", rank=3, step=7))
    for result in results:
        folder.append(result)
    folder.close()
    run = load_run(tmp_path)
    assert run.results == results
    assert run.warnings == ()


def test_a_second_writer_is_refused_with_the_holder_and_takes_over_from_the_dead(tmp_path: Path) -> None:
    process = holder_of(tmp_path)
    try:
        with pytest.raises(CannotRun) as caught:
            RunFolder.open(tmp_path, resume=True)
    finally:
        process.kill()
        process.communicate()
    assert caught.value.exit_code == 3
    assert str(caught.value) == f"{tmp_path} is in use by process {process.pid} on {os.uname().nodename}"
    assert str(process.pid) in (tmp_path / ".lock").read_text()
    folder = RunFolder.open(tmp_path, resume=True)
    assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on ")
    folder.close()


def test_a_folder_with_results_needs_resume_and_a_refusal_frees_the_lock(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, resume=False)
    folder.append(make_result())
    folder.close()
    with pytest.raises(BadInput, match="already contains a run; use --resume to continue it") as caught:
        RunFolder.open(tmp_path, resume=False)
    assert caught.value.exit_code == 2
    RunFolder.open(tmp_path, resume=True).close()


def test_a_place_that_cannot_hold_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(StorageError, match="cannot be written") as caught:
            RunFolder.open(path, resume=False)
        assert caught.value.exit_code == 7
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.fault(57)
def test_new_names_are_never_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda shape: "20260115-103000")
    stem = "20260115-103000-train"
    assert new_run_path("train", tmp_path / "runs", makes=False).name == stem
    paths = [new_run_path("train", tmp_path / "runs") for _ in range(3)]  # as three runs that begin together
    assert [path.name for path in paths] == [stem, f"{stem}-2", f"{stem}-3"]
    assert all(path.is_dir() for path in paths)
    assert new_run_path("train", tmp_path / "runs", makes=False).name == f"{stem}-4"


def test_a_place_where_no_folder_can_be_made_is_named_when_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be written"):
        RunFolder.open(new_run_path("train", tmp_path / "runs"), resume=False)


def test_latest_points_at_the_newest_run(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        point_latest_at(tmp_path / name)
        assert (tmp_path / "latest").resolve() == tmp_path / name
    assert os.readlink(tmp_path / "latest") == "second"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "latest", "second"]


def test_a_folder_called_latest_stays(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    (tmp_path / "run").mkdir()
    point_latest_at(tmp_path / "run")
    assert not (tmp_path / "latest").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "run"]


def test_runs_are_found_by_their_files_in_the_order_of_names(tmp_path: Path) -> None:
    for name, file in (("b", "trials.jsonl"), ("a", "experiment.yaml"), ("deep/er/c", "trials.jsonl")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / file).write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "trials.txt").write_text("")
    point_latest_at(tmp_path / "b")
    assert list(find_runs(tmp_path)) == [tmp_path / "a", tmp_path / "b", tmp_path / "deep/er/c"]
    assert list(find_runs(tmp_path / "b")) == [tmp_path / "b"]
    assert list(find_runs(tmp_path / "nowhere")) == []


def test_links_are_not_followed_round_and_round(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert list(find_runs(tmp_path)) == []


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 5_000],
    ids=["empty", "cut", "bytes", "deep", "long"],
)
def test_a_json_file_that_cannot_be_read_is_none(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "results.json").write_bytes(raw)
    assert read_json(tmp_path / "results.json") is None
    assert read_json(tmp_path / "missing.json") is None
