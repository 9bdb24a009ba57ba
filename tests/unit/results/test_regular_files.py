"""Files of a run folder: no link is followed, nothing waits, and nothing large is read."""

import os
import socket
from pathlib import Path

import pytest

from scalescope.results.stored import files
from scalescope.results.stored.files import (
    Unreadable,
    inside,
    open_regular,
    parse_json,
    read_bytes,
    read_json,
    stored_lines,
    why_unreadable,
)


def _link(path: Path) -> None:
    (path.parent / "target").write_text('{"secret": 1}')
    path.symlink_to("target")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


SPECIAL = {
    "link": _link,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path.name),
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "socket": _socket,
}


@pytest.mark.parametrize("make", SPECIAL.values(), ids=SPECIAL.keys())
def test_only_regular_files_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: "object"
) -> None:
    monkeypatch.chdir(tmp_path)  # the names of sockets are short
    path = Path("file.json")
    make(path)  # type: ignore[operator]
    with pytest.raises(OSError):
        open_regular(path)
    assert read_json(path) is None
    assert (why_unreadable(path) or "").startswith("file.json: left out: ")
    warnings: list[str] = []
    assert list(stored_lines(path, warnings.append)) == []
    assert len(warnings) == 1


def test_nothing_is_created_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "new")
    with pytest.raises(OSError):
        open_regular(tmp_path / "link", os.O_RDWR | os.O_CREAT)
    assert not (tmp_path / "new").exists()


def test_a_missing_file_is_not_a_warning(tmp_path: Path) -> None:
    assert why_unreadable(tmp_path / "none.json") is None
    warnings: list[str] = []
    assert list(stored_lines(tmp_path / "none", warnings.append)) == []
    assert warnings == []


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", "a\0b"])
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Unreadable, match="leads out"):
        inside(tmp_path, name)


def test_folders_behind_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "traces").symlink_to("elsewhere")
    with pytest.raises(Unreadable, match="is a link"):
        inside(tmp_path, "traces/x.json")
    assert inside(tmp_path, "elsewhere/x.json") == tmp_path / "elsewhere" / "x.json"


def test_large_files_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(Unreadable, match="more than"):
        read_bytes(path, most=1000)


def test_a_line_without_end_ends_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST_LINE_BYTES", 100)
    (tmp_path / "lines").write_bytes(b"first\n" + b"x" * 1000 + b"\nlast\n")
    warnings: list[str] = []
    assert list(stored_lines(tmp_path / "lines", warnings.append)) == [(1, b"first\n")]
    assert warnings == [f"{tmp_path / 'lines'}:2: left out with all that follows: the line is too long"]


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "[1, Infinity]",
        '{"a": 1e999}',
        "9" * 5000,
        "[" * 200_000,
        "[" * 300 + "]" * 300,
        '{"a":' * 150 + "1" + "}" * 150,
        "nothing",
        b"\xff\xfe{}",
    ],
)
def test_values_that_no_file_of_ours_has_are_refused(text: str | bytes) -> None:
    with pytest.raises(Unreadable):
        parse_json(text)


def test_lone_surrogates_are_spelled_out() -> None:
    assert parse_json(r'{"a": "\ud800"}') == {"a": "\\ud800"}
    assert parse_json('{"a": [1, 2.5, null, true, "ü"]}') == {"a": [1, 2.5, None, True, "ü"]}
