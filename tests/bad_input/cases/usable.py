"""Odd input that is not wrong: it is used, and what of it cannot be used is named; the rest still renders."""

import json

from scalescope.errors import ExitCode
from tests.bad_input.case import FILE, OLD_RUNS, Case, Content, Folder, StoredRun

_OK = ExitCode.OK
_LINES = (OLD_RUNS / "train" / "trials.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
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
_NEWER = _changed('"schema_version":"1.0"', '"schema_version":"9.0"')

_STORED = (
    _explained("truncated last line", _WHOLE + _FIRST[:200], f"trials.jsonl:{len(_LINES) + 1}", "cut off"),
    _explained("corrupt middle", _FIRST + "garbage\n" + "".join(_LINES[1:]), "trials.jsonl:2", "left out"),
    _explained("newer schema", _WHOLE + _NEWER, f"trials.jsonl:{len(_LINES) + 1}", "9.0"),
    _explained("NUL bytes", _WHOLE.encode() + b"\0\0\0\n", f"trials.jsonl:{len(_LINES) + 1}", "left out"),
    _explained("not UTF-8", _WHOLE.encode() + b"\xff\xfe\n", f"trials.jsonl:{len(_LINES) + 1}", "left out"),
    _explained("NaN duration", _WHOLE + _changed('"launch":0', '"launch":NaN'), "trials.jsonl:", "left out"),
    _explained("1e999", _WHOLE + _changed('"launch":0', '"launch":1e999'), "trials.jsonl:", "left out"),
    _explained(
        "5,000 digits", _WHOLE + _changed('"launch":0', '"launch":' + "9" * 5000), "trials.jsonl:", "left out"
    ),
    _explained("deep nesting", _WHOLE + '{"a":' * 5000 + "}" * 5000 + "\n", "trials.jsonl:", "left out"),
    _explained(
        "wrong types",
        _WHOLE + json.dumps({"schema_version": 2, "settings": []}) + "\n",
        "trials.jsonl:",
        "left out",
    ),
    _explained("scalar line", _WHOLE + "42\n", "trials.jsonl:", "left out"),
    _explained("blank lines", "\n\n" + _WHOLE + "\n"),
    Case(
        name="report: one run of two is broken",
        command=("report", ".", "--format", "json", "--out", "o"),
        files={"a": StoredRun("train"), "b": StoredRun("train", {"trials.jsonl": "garbage\n"})},
        says=("b",),
        code=_OK,
        leaves=True,
    ),
    Case(
        name="list: one run of two is broken",
        command=("list", "."),
        files={"a": StoredRun("train"), "b": StoredRun("train", {"trials.jsonl": b"\xff\0"})},
        says=("a",),
        code=_OK,
    ),
    Case(
        name="ledger that is a folder",
        command=("predict", "--ledger"),
        files={"l": Folder()},
        environment={"SCALESCOPE_LEDGER": "l"},
        says=("l: cannot be read",),
        code=_OK,
    ),
    Case(
        name="ledger of garbage",
        command=("predict", "--ledger"),
        files={"l": "garbage\n"},
        environment={"SCALESCOPE_LEDGER": "l"},
        says=("l: 1 damaged line",),
        code=_OK,
    ),
)

_PLANNED = (
    _planned("exponent", "batch_size: 1e3\n", "1000"),
    _planned("byte order mark", b"\xef\xbb\xbfbatch_size: 16\n", "16"),
    _planned("Windows line ends", "batch_size: 16\r\nworld_size: 2\r\n", "16"),
    _planned("no as a word", "amp: no\nbatch_size: 16\n", "16"),
    _planned("quoted number", 'batch_size: "16"\n', "16"),
    _planned("one document with its marks", "---\nbatch_size: 16\n...\n", "16"),
    Case(
        name="stray variables of a rank",
        command=("train", "--device=cpu", "--dry-run"),
        environment={"RANK": "0"},
        says=("RANK is set without the other variables of a rank: ignored",),
        code=_OK,
    ),
    Case(
        name="more ranks than cores",
        command=("train", "--device=cpu", "--world-size=3", "--dry-run"),
        says=("3 ranks on 2 cores", "compete for cores"),
        code=_OK,
    ),
)

CASES = (*_STORED, *_PLANNED)
