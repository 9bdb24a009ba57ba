"""The checks of benchmarks/soak.py: each sees what it is there for."""

import importlib
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
checks = importlib.import_module("soaking.checks")
processes = importlib.import_module("soaking.processes")
sweeps = importlib.import_module("soaking.sweeps")

_ZYGOTE = ("python", "-P", "-m", "scalescope.worker.process.zygote")


def _line(trial: str, launch: int, status: str = "ok") -> str:
    return json.dumps({"trial_id": trial, "launch": launch, "status": status}) + "\n"


def test_lines_are_launches_or_unreadable() -> None:
    text = _line("a", 0) + _line("a", 1, "failed") + '{"trial_id": "b", "la\n' + "5\n" + _line("b", 0, "oom")
    stored = checks.stored_launches(text)
    assert stored.finished == [("a", 0), ("b", 0)]
    assert len(stored.unreadable) == 2


def test_what_was_there_and_is_not_is_lost() -> None:
    assert checks.lost({("a", 0), ("a", 1)}, [("a", 1), ("b", 0)]) == [("a", 0)]


def test_a_launch_that_is_there_twice_is_duplicated() -> None:
    failed_first = checks.stored_launches(_line("a", 0, "failed") + _line("a", 0) + _line("b", 0))
    assert checks.duplicated(failed_first.finished) == []
    assert checks.duplicated([("a", 0), ("b", 0), ("a", 0)]) == [("a", 0)]


def test_files_that_do_not_parse_or_were_not_renamed_are_named(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "ranks" / "a-0-0.json").write_text('{"sta')
    (tmp_path / "ranks" / ".a-0-1.json.ab_c1234").write_text("")
    (tmp_path / ".lock").write_text("")
    assert [path.name for path in checks.unreadable_files(tmp_path)] == ["a-0-0.json"]
    assert [path.name for path in checks.half_written(tmp_path)] == [".a-0-1.json.ab_c1234"]


@pytest.mark.parametrize(("leak", "expected"), [(0, (0, 0)), (1, (4000, 120))])
def test_growth_is_seen_after_the_start(leak: int, expected: tuple[int, int]) -> None:
    """The first ten samples are a start in which everything grows; launches take descriptors for a while."""
    starting = [checks.Sample(float(second), second << 20, second) for second in range(10)]
    steady = [
        checks.Sample(
            10.0 + second, 10**9 + leak * 100 * (second // 3), 20 + leak * second + 5 * (second % 2)
        )
        for second in range(180)
    ]
    assert checks.growth([*starting, *steady], start_s=10.0) == expected


@pytest.mark.parametrize(
    ("words", "parent", "target"),
    [
        (("python", "-m", "scalescope", "train"), 1, "command line"),
        (("python", "-I", "-S", "/x/guard.py", "5", *_ZYGOTE), 5, "guard"),
        (_ZYGOTE, 6, "zygote"),
        (_ZYGOTE, 7, "rank"),
        (("python", "-m", "scalescope.worker.process.main", "job.json"), 6, "rank"),
        (("sleep", "infinity"), 5, "holder"),
        (("python", "soaked.py"), 6, "command"),
        (("sh",), 5, "other"),
    ],
)
def test_victims_are_told_apart(words: tuple[str, ...], parent: int, target: str) -> None:
    guard = processes.MarkedProcess(6, 5, ("python", "-I", "-S", "/x/guard.py", "5", *_ZYGOTE), "m")
    zygote = processes.MarkedProcess(7, 6, _ZYGOTE, "m")
    pid = 5 if target == "command line" else 9
    process = processes.MarkedProcess(pid, parent, words, "m", has_log=True)
    named = processes.by_target([guard, zygote, process], {5})
    assert process in named[target]
