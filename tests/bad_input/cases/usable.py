"""Odd input that is not wrong: it is used, and what of it cannot be used is named; the rest still renders."""

from scalescope.errors import ExitCode
from tests.bad_input.case import FILE, STORED_RUNS, Case, Content, Folder, StoredRun, of_command

_OK = ExitCode.OK
_LINES = (STORED_RUNS / "train" / "trials.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
_FIRST = _LINES[0]


def _changed(old: str, new: str) -> str:
    assert old in _FIRST
    return _FIRST.replace(old, new, 1)


def _planned(name: str, content: Content, *says: str) -> Case:
    command = ("train", FILE, "--device=cpu", "--dry-run")
    return Case(name=f"planned: {name}", command=command, files={FILE: content}, says=says, code=_OK)


def _explained(name: str, trials: str | bytes, *says: str) -> Case:
    run = StoredRun("train", {"trials.jsonl": trials})
    return Case(name=f"explained: {name}", command=("explain", "r"), files={"r": run}, says=says, code=_OK)


_WHOLE = "".join(_LINES)
_NEWER = _changed('"schema_version":"2.0"', '"schema_version":"9.0"')

_STORED = (
    _explained("truncated last line", _WHOLE + _FIRST[:200], f"trials.jsonl:{len(_LINES) + 1}", "cut off"),
    _explained("corrupt middle", _FIRST + "garbage\n" + "".join(_LINES[1:]), "trials.jsonl:2", "left out"),
    _explained("newer schema", _WHOLE + _NEWER, f"trials.jsonl:{len(_LINES) + 1}", "9.0"),
    _explained("blank lines", "\n\n" + _WHOLE + "\n"),
    of_command(
        "report: one run of two is broken",
        "report . --format json --out o",
        "b",
        files={"a": StoredRun("train"), "b": StoredRun("train", {"trials.jsonl": "garbage\n"})},
        code=_OK,
        leaves=True,
    ),
    of_command(
        "list: one run of two is broken",
        "list .",
        "a",
        files={"a": StoredRun("train"), "b": StoredRun("train", {"trials.jsonl": b"\xff\0"})},
        code=_OK,
    ),
    of_command(
        "ledger that is a folder",
        "predict --ledger",
        "l: cannot be read",
        files={"l": Folder()},
        environment={"SCALESCOPE_LEDGER": "l"},
        code=_OK,
    ),
    of_command(
        "ledger of garbage",
        "predict --ledger",
        "l: 1 damaged line",
        files={"l": "garbage\n"},
        environment={"SCALESCOPE_LEDGER": "l"},
        code=_OK,
    ),
)

_PLANNED = (
    _planned("exponent", "batch_size: 1e3\n", "1000"),
    _planned("byte order mark", b"\xef\xbb\xbfbatch_size: 16\n", "16"),
    _planned("Windows line ends", "batch_size: 16\r\nworld_size: 2\r\n", "16"),
    _planned("one document with its marks", "---\nbatch_size: 16\n...\n", "16"),
    of_command(
        "stray variables of a rank",
        "train --device=cpu --dry-run",
        "RANK is set without the other variables of a rank: ignored",
        environment={"RANK": "0"},
        code=_OK,
    ),
    of_command(
        "more ranks than cores",
        "train --device=cpu --world-size=3 --dry-run",
        "3 ranks on 2 cores",
        "compete for cores",
        code=_OK,
    ),
)

CASES = (*_STORED, *_PLANNED)
