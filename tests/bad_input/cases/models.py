"""Own workloads that are refused without loading torch; what a rank refuses is in `test_models`."""

from tests.bad_input.case import Case, Content, Fifo

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
    _model("NUL characters", "m.py:build", "m.py", files={"m.py": b"x = 1\0\n"}),
    _model(
        "nested 5,000 deep", "m.py:build", "m.py", files={"m.py": "x = " + "(" * 5000 + ")" * 5000 + "\n"}
    ),
    _model("pipe", "m.py:build", "m.py: not a regular file", files={"m.py": Fifo()}),
)
