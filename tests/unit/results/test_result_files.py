"""Writing that survives crashes and full disks."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import StorageError
from scalescope.results.files import ResultLines, to_text, write_atomically
from scalescope.results.run_folder import read_json
from tests.speed import patience

SOURCE = Path(__file__).parents[3] / "src"


def append_line(path: Path, record: dict[str, Any]) -> None:
    lines = ResultLines(path)
    try:
        lines.append(record)
    finally:
        lines.close()


def start(script: str, *arguments: str) -> "subprocess.Popen[str]":
    """A light process that knows of this package only what it imports itself."""
    return subprocess.Popen(
        [sys.executable, "-S", "-c", script, *arguments],
        env={"PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def test_lines_are_appended_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    append_line(path, {"a": 1})
    append_line(path, {"b": [1.5, None, "ü\n"]})
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [{"a": 1}, {"b": [1.5, None, "ü\n"]}]
    assert path.read_bytes().endswith(b"\n")


def test_broken_characters_are_spelled_out(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    append_line(path, {"reason": "no file \udcff.bin", "notes": ["\ud800", "ü 🙂"]})
    write_atomically(tmp_path / "run.json", to_text({"reason": "\udcff"}))
    write_atomically(tmp_path / "report.txt", "no file \udcff.bin ü")
    assert json.loads(path.read_text()) == {"reason": "no file \\udcff.bin", "notes": ["\\ud800", "ü 🙂"]}
    assert read_json(tmp_path / "run.json") == {"reason": "\\udcff"}
    assert (tmp_path / "report.txt").read_text(encoding="utf-8") == "no file \\udcff.bin ü"


def test_half_a_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_bytes(b'{"a":1}\n{"half":')
    append_line(path, {"b": 2})
    assert path.read_bytes() == b'{"a":1}\n{"half":\n{"b":2}\n'


def test_a_number_that_is_no_json_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    append_line(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        append_line(path, {"a": float("nan")})
    assert path.read_bytes() == b'{"a":1}\n'


@pytest.mark.parametrize("before", [b'{"a":1}\n', b'{"a":1}\n{"half":', b""])
def test_a_short_write_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_bytes(before)
    whole_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: whole_write(descriptor, line[:5]))
    with pytest.raises(StorageError, match=r"trials\.jsonl: could not be written: No space left on device"):
        append_line(path, {"b": 2})
    assert path.read_bytes() == before


def test_a_full_disk_leaves_the_old_lines_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trials.jsonl"
    append_line(path, {"a": 1})

    def refuse(descriptor: int, line: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        with pytest.raises(StorageError) as caught:
            append_line(path, {"b": 2})
    assert caught.value.exit_code == 7
    append_line(path, {"c": 3})
    assert path.read_bytes() == b'{"a":1}\n{"c":3}\n'


AT_THE_LIMIT = """
import resource, sys
from pathlib import Path
from scalescope.errors import StorageError
from scalescope.results.files import ResultLines, write_atomically

def append_line(path, record):
    ResultLines(path).append(record)

append_line(Path(sys.argv[1]), {"a": "x" * 100})
write_atomically(Path(sys.argv[2]), "old")
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
too_much = ((append_line, sys.argv[1], {"b": "y" * 300}), (write_atomically, sys.argv[2], "z" * 300))
for write, path, what in too_much:
    try:
        write(Path(path), what)
    except StorageError as error:
        print(error, flush=True)
"""


def test_the_systems_own_short_write_leaves_old_files_intact(tmp_path: Path) -> None:
    lines, summary = tmp_path / "trials.jsonl", tmp_path / "results.json"
    process = start(AT_THE_LIMIT, str(lines), str(summary))
    output, _ = process.communicate(timeout=patience())
    assert process.returncode == 0
    assert [line.partition(": ")[0] for line in output.splitlines()] == [str(lines), str(summary)]
    assert json.loads(lines.read_text()) == {"a": "x" * 100}
    assert summary.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.json", "trials.jsonl"]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_atomically(path, "old ü")
    write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "fdopen"])
def test_a_failed_replacement_keeps_the_old_file_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "results.json"
    write_atomically(path, "old")

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, refuse)
    with pytest.raises(StorageError, match=r"results\.json: could not be written: No space left on device"):
        write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    for write in (lambda path: append_line(path, {}), lambda path: write_atomically(path, "")):
        with pytest.raises(StorageError, match=r"gone/results\.json: could not be written: No such file"):
            write(tmp_path / "gone" / "results.json")


def test_text_for_people_never_holds_nan() -> None:
    assert json.loads(to_text({"b": 1, "a": [None]})) == {"b": 1, "a": [None]}
    with pytest.raises(ValueError, match="JSON compliant"):
        to_text({"a": float("inf")})


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o027, 0o640)])
def test_files_have_the_mode_that_the_user_s_umask_leaves(mask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "run.json", "{}")
        append_line(tmp_path / "trials.jsonl", {})
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {mode}
