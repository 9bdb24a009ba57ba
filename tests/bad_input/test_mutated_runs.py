"""Real run folders, changed at random: commands that read them end with a line and a code, soon, and small.

The changes are those of benchmarks/mutated_runs.py, which makes a thousand folders.
"""

import contextlib
import io
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scalescope.cli import app
from tests.speed import limit

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from mutating import calls  # noqa: E402
from mutating.calls import Checked, check_folder, remove_folder  # noqa: E402
from mutating.operations import OPERATIONS, make_outside, state_of  # noqa: E402

SOURCES = sorted(path.parent for path in (ROOT / "tests" / "old_runs").glob("*/trials.jsonl"))
_BY_NAME = {operation.__name__: operation for operation in OPERATIONS}
MOST_BYTES = 1 << 30  # of memory that is used


@pytest.fixture(scope="module", autouse=True)
def plain_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Pages without drawings, which take most of the time and read nothing stored."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scalescope.report.render.page.svg_for_page", lambda figure: "<svg></svg>")
        patch.setattr(calls, "MOST_S", limit(calls.MOST_S))
        out = str(tmp_path_factory.mktemp("healthy"))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            app.main(["report", str(SOURCES[0]), "--out", out])  # loads what all folders need
        yield


@given(seed=st.integers(0, 10**9))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_mutated_folder_gives_a_code_and_no_traceback(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    checked = _checked(seed, tmp_path_factory.mktemp("mutated"))
    assert [f"{call.verb}: {call.problem}" for call in checked.problems] == []
    assert checked.peak_bytes < MOST_BYTES


def test_a_traceback_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("0123456789ab")

    monkeypatch.setattr("scalescope.report.runs.listed_runs", fail)
    (call,) = _checked(0, tmp_path, ("list",)).problems
    assert call.problem.startswith("KeyError: '0123456789ab'")


def _checked(seed: int, where: Path, verbs: tuple[str, ...] = calls.VERBS) -> Checked:
    environment = dict(os.environ)
    try:
        return check_folder(seed, SOURCES, where, verbs)
    finally:
        os.environ.clear()
        os.environ.update(environment)
        remove_folder(seed, where)


@pytest.mark.parametrize("name", sorted(_BY_NAME))
def test_a_change_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    """Where links in place of every folder lead out of it, nothing behind them changes."""
    outside, folder = make_outside(tmp_path) / "folder", tmp_path / "run"
    shutil.copytree(SOURCES[0], folder)
    for part in ("ranks", "logs", "slurm", "traces", "figures", "tables"):
        shutil.rmtree(folder / part, ignore_errors=True)
        (folder / part).symlink_to(outside)
    before = outside.stat().st_mode, state_of(outside)
    for seed in range(20):
        with contextlib.suppress(OSError):
            _BY_NAME[name](folder, random.Random(seed))
    assert (outside.stat().st_mode, state_of(outside)) == before
