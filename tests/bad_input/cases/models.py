"""Own workloads that are refused without loading torch; what a rank refuses is in `test_models`."""

from tests.bad_input.case import Case, Content, Fifo, Folder

_GOOD = "def build():\n    return None\n"


def _model(name: str, workload: str, *says: str, files: dict[str, Content] | None = None) -> Case:
    return Case(
        name=f"model: {name}", command=("train", f"--workload={workload}"), says=says, files=files or {}
    )


CASES = (
    _model("missing file", "gone.py:build", "gone.py: No such file"),
    _model(
        "syntax error",
        "m.py:build",
        "m.py:2: invalid syntax: model = = 5",
        files={"m.py": "x = 1\nmodel = = 5\n"},
    ),
    _model("wrong indent", "m.py:build", "m.py:2: ", files={"m.py": "def build():\nreturn 1\n"}),
    _model("missing function", "m.py:biuld", "biuld", files={"m.py": _GOOD}),
    _model("no function named", "m.py", "m.py", files={"m.py": _GOOD}),
    _model("empty function", "m.py:", "m.py:", files={"m.py": _GOOD}),
    _model("function that is not a name", "m.py:a b", "m.py:a b", files={"m.py": _GOOD}),
    _model("not UTF-8", "m.py:build", "m.py", files={"m.py": b"x = '\xff'\n"}),
    _model("NUL characters", "m.py:build", "m.py", files={"m.py": b"x = 1\0\n"}),
    _model(
        "nested 5,000 deep", "m.py:build", "m.py", files={"m.py": "x = " + "(" * 5000 + ")" * 5000 + "\n"}
    ),
    _model("100,000 signs", "m.py:build", "m.py", files={"m.py": "x = " + "-" * 100_000 + "1\n"}),
    _model("folder", "m.py:build", "m.py: Is a directory", files={"m.py": Folder()}),
    _model("pipe", "m.py:build", "m.py: not a regular file", files={"m.py": Fifo()}),
    _model("device", "/dev/zero:build", "/dev/zero"),
    _model("parent of a module", "..:build", "..:build"),
    _model("escape codes", "\x1b[2J.py:build", "\\x1b[2J"),
)
