"""Real run folders, changed at random: commands that read them end with a line and a code, soon, and small.

The changes are those of benchmarks/mutated_runs.py, which makes a thousand folders. Calls are made in forks
of a fresh interpreter, not of this one.
"""

import contextlib
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.speed import limit

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from mutating.calls import MOST_S, Caller, check_folder, remove_folder  # noqa: E402
from mutating.operations import OPERATIONS, make_outside, state_of  # noqa: E402
from mutating.sources import enriched_copies  # noqa: E402

STORED = sorted(path.parent for path in (ROOT / "tests" / "old_runs").glob("*/trials.jsonl"))
_BY_NAME = {operation.__name__: operation for operation in OPERATIONS}
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


@given(seed=st.integers(0, 10**9))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_mutated_folder_gives_a_code_and_no_traceback(
    tmp_path_factory: pytest.TempPathFactory, sources: list[Path], caller: Caller, seed: int
) -> None:
    where = tmp_path_factory.mktemp("mutated")
    checked = check_folder(seed, sources, where, caller)
    remove_folder(seed, where)
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


def test_a_traceback_would_be_noticed(sources: list[Path], tmp_path: Path) -> None:
    with Caller(draws=False, broken="scalescope.report.runs.listed_runs") as caller:
        (call,) = check_folder(0, sources, tmp_path, caller, ("list",)).problems
    assert call.problem.startswith("KeyError: 'listed_runs'")


@pytest.mark.parametrize("name", sorted(_BY_NAME))
def test_a_change_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    """Where links in place of every folder lead out of it, nothing behind them changes."""
    outside, folder = make_outside(tmp_path) / "folder", tmp_path / "run"
    shutil.copytree(STORED[0], folder)
    for part in ("ranks", "logs", "slurm", "traces", "figures", "tables"):
        shutil.rmtree(folder / part, ignore_errors=True)
        (folder / part).symlink_to(outside)
    before = outside.stat().st_mode, state_of(outside)
    for seed in range(20):
        with contextlib.suppress(OSError):
            _BY_NAME[name](folder, random.Random(seed))
    assert (outside.stat().st_mode, state_of(outside)) == before
