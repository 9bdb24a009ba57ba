"""Half-written files: those of killed writers are removed, everything else stays."""

from pathlib import Path

from scalescope.results.ranks.stray_files import remove_stray_files
from scalescope.results.run_folder import WRITTEN, RunFolder


def _write(*paths: Path) -> None:
    for path in paths:
        path.write_text("{")


def test_a_held_folder_is_cleared_of_half_written_files(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, resume=False).close()
    stray = (tmp_path / "ranks" / ".abc-0-1.json.k3_x9abc", tmp_path / ".run.json.abcd1234")
    kept = (
        tmp_path / ".report.html.abcd1234",  # `report` may be writing it
        tmp_path / ".mine.json.abcd1234",
        tmp_path / "ranks" / "abc-0-1.json",
        tmp_path / "ranks" / ".abc-0-1.json.ABCD",
    )
    _write(*stray, *kept)
    folder = RunFolder.open(tmp_path, resume=True)
    assert [path for path in stray if path.exists()] == []
    assert all(path.exists() for path in kept)
    _write(*stray)  # a rank was killed meanwhile
    folder.close()
    assert [path for path in stray if path.exists()] == []


def test_links_are_not_followed(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    _write(elsewhere / ".abc-0-1.json.k3_x9abc")
    run.mkdir()
    (run / "ranks").symlink_to(elsewhere)
    (run / ".run.json.abcd1234").symlink_to(elsewhere)
    remove_stray_files(run, WRITTEN)
    assert (elsewhere / ".abc-0-1.json.k3_x9abc").exists()
    assert (run / ".run.json.abcd1234").is_symlink()
