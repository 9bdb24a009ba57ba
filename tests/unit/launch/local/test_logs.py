"""Logs: one that grows without end is shortened; the line that says why a command crashed is found."""

from pathlib import Path

import pytest

from scalescope.launch.local import logs
from scalescope.launch.local.command.evidence import crash_line
from scalescope.launch.local.logs import cap_log, tail_of


def test_a_large_log_keeps_its_beginning_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_LARGEST_BYTES", 100)
    monkeypatch.setattr(logs, "_KEPT_END_BYTES", 8)
    log = tmp_path / "0.log"
    log.write_bytes(b"began " + b"x" * 200 + b"the end\n")
    cap_log(log)
    assert log.read_bytes() == b"began " + b"x" * 36 + b"the end\n"


def test_a_small_log_is_left_alone_and_a_missing_one_is_none(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_bytes(b"short")
    for path in (log, tmp_path / "none.log"):
        cap_log(path)
    assert log.read_bytes() == b"short"
    assert (tail_of(log, 3), tail_of(log, 30), tail_of(tmp_path / "none.log", 3)) == (b"ort", b"short", b"")


_TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()\n'
_LAUNCHER = (
    'Traceback (most recent call last):\n  File "torchrun", line 8, in <module>\n'
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    "====\ntrain.py FAILED\n====\n"
)
_LOGS = {
    "": "",
    "starting\n\nusage: train.py\ntrain.py: error: unrecognized arguments: --x\n\n": (
        "train.py: error: unrecognized arguments: --x"
    ),
    f"epoch 1\n{_TRACEBACK}ValueError: no data\nlast words\n": "ValueError: no data",
    f"{_TRACEBACK}KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n"
    f"{_TRACEBACK}ValueError: no data\n": "ValueError: no data",
    f"{_TRACEBACK}ValueError: no data\n{_LAUNCHER}": "ValueError: no data",
    f"{_TRACEBACK}ValueError: mine\n{_TRACEBACK}OSError: Broken pipe\n": "ValueError: mine",
    f"{_TRACEBACK}OSError: Broken pipe\n": "OSError: Broken pipe",
    f"E0101 failed (exitcode: 3) local_rank: 0\n{_LAUNCHER}": "E0101 failed (exitcode: 3) local_rank: 0",
    "[rank1]: Traceback (most recent call last):\n[rank1]:   File 'x'\n[rank1]: ValueError: \x1b[1mbold\n": (
        r"ValueError: \x1b[1mbold"
    ),
}


@pytest.mark.parametrize("text", _LOGS)
def test_the_error_of_the_script_is_chosen(tmp_path: Path, text: str) -> None:
    log = tmp_path / "0.log"
    log.write_text(text)
    assert crash_line(log) == _LOGS[text]


def test_a_log_that_is_not_text_or_not_there_does_no_harm(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    assert crash_line(log) == ""
    log.write_bytes(b"\xff" * 1000)
    assert len(crash_line(log)) == 300
