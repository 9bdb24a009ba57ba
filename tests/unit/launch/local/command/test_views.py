"""Which folders a private view covers, which pass through, and what is refused before the first launch."""

from pathlib import Path

import pytest

from scalescope.errors import CannotRun
from scalescope.launch.local.command import views
from scalescope.launch.local.command.views import Views, _around, _covered
from scalescope.private_view import OVERLAY, REDIRECT, changed_files, is_below, remove_tree


def test_folders_below_are_told_by_whole_names() -> None:
    assert is_below("/a/b", ["/a"]) and is_below("/a", ["/a"])
    assert not is_below("/ab", ["/a"])


def test_in_a_shared_folder_the_whole_project_is_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "SHARED", (str(tmp_path),))
    (project := tmp_path / "project" / "scripts").mkdir(parents=True)
    (output := tmp_path / "output" / "deep").mkdir(parents=True)
    monkeypatch.chdir(project)
    words = ["python", "train.py", f"--out={output}", "/none", str(tmp_path)]
    assert _covered(words) == [str(tmp_path / "project"), str(tmp_path / "output")]


def test_beside_a_covered_folder_the_others_stay_writable(tmp_path: Path) -> None:
    for name in ("a/x", "a/y", "b"):
        (tmp_path / name).mkdir(parents=True)
    assert list(_around(str(tmp_path), [str(tmp_path / "a/x")])) == [
        str(tmp_path / "a/y"),
        str(tmp_path / "b"),
    ]
    assert list(_around(str(tmp_path), ["/elsewhere"])) == [str(tmp_path)]


def test_caches_pass_through_unless_they_hold_the_project(tmp_path: Path) -> None:
    cache = tmp_path / ".cache" / "huggingface"
    cache.mkdir(parents=True)
    chosen = Views({"HOME": str(tmp_path), "TORCH_HOME": str(tmp_path)})
    paths = chosen._writable([str(tmp_path / "project")], [], OVERLAY)
    assert paths == [str(tmp_path / ".cache"), str(cache)]


def test_without_overlays_and_landlock_nothing_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(views, "_works", lambda view: tried.append(view.kind))
    with pytest.raises(
        CannotRun, match="neither mount namespaces with overlays nor Landlock; use --allow-writes"
    ):
        Views().check(["python", "x.py"], None)
    assert tried == [OVERLAY, REDIRECT]
    assert Views().check(["python", "x.py"], Path("kept")) == REDIRECT


def test_a_shell_script_that_slurm_starts_is_refused() -> None:
    with pytest.raises(CannotRun, match="srun starts a shell script"):
        Views().check(["srun", "bash", "run.sh"], None)


def test_a_kind_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(views, "_works", lambda view: tried.append(view.kind) or True)
    chosen = Views()
    assert [chosen.check(["python", "x.py"], None) for _ in range(3)] == [OVERLAY] * 3
    assert tried == [OVERLAY]


def test_changed_files_have_the_paths_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "0-path").write_text("/home")
    (tmp_path / "0-changes" / "me").mkdir(parents=True)
    (tmp_path / "0-changes" / "me" / "ckpt.pt").write_text("x")
    (tmp_path / "files" / "data").mkdir(parents=True)
    (tmp_path / "files" / "data" / "log").write_text("y")
    assert [path for path, _ in changed_files(tmp_path)] == ["/home/me/ckpt.pt", "/data/log"]


def test_a_folder_that_nobody_may_read_is_removed(tmp_path: Path) -> None:
    (tmp_path / "view" / "work" / "work").mkdir(parents=True)
    (tmp_path / "view" / "work" / "work").chmod(0)
    remove_tree(tmp_path / "view")
    assert not (tmp_path / "view").exists()
