"""Real run folders, changed at random: commands that read them end with a line and a code, soon, and small.

The changes are those of benchmarks/mutated_runs.py, which makes a thousand folders. Calls are made in forks
of a fresh interpreter, not of this one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.speed import limit

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from mutating.calls import MOST_S, Caller, check_folder, problem_of, remove_folder  # noqa: E402
from mutating.sources import enriched_copies  # noqa: E402

STORED = sorted(path.parent for path in (ROOT / "tests" / "stored_runs").glob("*/trials.jsonl"))
SEEDS = (1, 2, 10, 16, 17, 25, 26, 36)  # a run of every verb, and nearly every kind of change
MOST_BYTES = 1 << 30  # of memory that is used


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs with everything that some launches store."""
    return enriched_copies(STORED, tmp_path_factory.mktemp("enriched"))


@pytest.fixture(scope="module")
def caller() -> Iterator[Caller]:
    """Pages without drawings, which take most of the time and read nothing stored."""
    with Caller(most_s=limit(MOST_S), draws=False) as caller:
        yield caller


@pytest.mark.parametrize("seed", SEEDS)
def test_a_mutated_folder_gives_a_code_and_no_traceback(
    tmp_path: Path, sources: list[Path], caller: Caller, seed: int
) -> None:
    checked = check_folder(seed, sources, tmp_path, caller)
    remove_folder(seed, tmp_path)
    assert [f"{call.verb}: {call.problem}" for call in checked.problems] == []
    assert checked.peak_bytes < MOST_BYTES


def test_healthy_runs_are_read_without_a_warning(sources: list[Path], caller: Caller, tmp_path: Path) -> None:
    """Or the changes would be made to what nothing reads."""
    (scaled,) = [run for run in sources if run.name.startswith("scale")]
    shutil.copytree(scaled, tmp_path / "runs" / "run")
    calls, _ = caller.calls(tmp_path, tmp_path / "runs" / "run", scaled, ("predict", "explain"))
    assert [(call.code, call.problem) for call in calls] == [(0, ""), (0, "")]
    for call in calls:
        assert "left out" not in (tmp_path / f"output-{call.verb}.txt").read_text()


def test_a_call_may_take_only_so_much_memory() -> None:
    """The limit counts from what the interpreter has, whatever the test's process has mapped."""
    program = """
from mutating import calls
calls.MOST_BYTES = 1 << 26
calls._limit_memory()
print(len(bytearray(1 << 25)), flush=True)
bytearray(1 << 27)
"""
    path = os.pathsep.join(map(str, (ROOT / "benchmarks", ROOT / "src")))
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert int(ended.stdout) == 1 << 25
    assert ended.stderr.endswith("MemoryError\n")


@pytest.mark.parametrize(
    ("code", "printed", "problem"),
    [
        (0, "all is well", ""),
        (1, "scalescope: x", "exit code 1"),
        (2, "Traceback (most recent call last):", "a traceback was printed"),
        (0, "chapter steps could not be made: KeyError()", "could not be made: KeyError()"),
    ],
)
def test_what_should_not_happen_would_be_noticed(
    code: int, printed: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "output").write_text(printed)
    assert problem_of(code, tmp_path / "output") == problem
