"""Measuring from a script with real ranks: results, a script without a guard, and Ctrl-C."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scalescope.results.run_record import is_unfinished
from tests.gloo.real_runs import StartedRun, read_results

pytestmark = pytest.mark.gloo

_JOB = """
import json

import scalescope
import torch
from torch import nn


def build():
    data = torch.utils.data.TensorDataset(torch.randn(256, 16), torch.randint(0, 4, (256,)))
    return nn.Linear(16, 4), data, nn.functional.cross_entropy


"""
_SETTINGS = 'batch_size=4, device="cpu", warmup_steps=3, repeat_disturbed=False, output_dir="run"'
_SCALE = f'scalescope.scale(build, world_size=[1, 2], window="0.3s", budget="10m", repeats=1, {_SETTINGS})'
_GUARDED = f"""
if __name__ == "__main__":
    result = {_SCALE}
    shown = {{"type": type(result).__name__, "ranks": [row["ranks"] for row in result.rows()]}}
    shown |= {{"code": result.exit_code, "html": result._repr_html_(), "headline": result.headline}}
    print(json.dumps(shown))
"""
_ENDLESS = f"""
if __name__ == "__main__":
    try:
        scalescope.train(build, world_size=2, window="1h", progress=True, {_SETTINGS})
    except KeyboardInterrupt as interruption:
        print("stopped:", interruption)
"""
Script = Callable[[str], StartedRun]


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    """Start a script of that text in an empty directory."""
    started: list[StartedRun] = []

    def begin(text: str) -> StartedRun:
        (tmp_path / "my_job.py").write_text(_JOB + text)
        started.append(StartedRun((sys.executable, "my_job.py"), tmp_path, tmp_path / "run", {}))
        return started[-1]

    yield begin
    for run in started:
        run.clean_up()


@pytest.mark.basic
def test_a_script_measures_its_own_function(script: Script) -> None:
    run = script(_GUARDED)
    finished = run.finish(240)
    assert (finished.returncode, finished.stderr) == (0, "")
    shown = json.loads(finished.stdout)
    assert (shown["type"], shown["ranks"], shown["code"]) == ("Scaling", [1, 2], 0)
    assert "<table>" in shown["html"] and shown["headline"]
    trained = [result for result in finished.results if "workload" in result["settings"]]
    assert {result["settings"]["workload"] for result in trained} == {"my_job.py:build"}
    assert {result["status"] for result in trained} == {"ok"}
    assert run.leftovers() == []


def test_a_script_without_a_guard_is_told_so_in_one_line(script: Script) -> None:
    run = script(f"{_SCALE}\nprint('not reached')\n")
    finished = run.finish(120)
    assert (finished.returncode, finished.stdout) == (1, "")  # an uncaught exception
    error = finished.stderr.splitlines()[-1]
    assert "workload my_job.py:build: line " in error
    assert (
        'scalescope.scale() was called inside a rank: put the call under `if __name__ == "__main__":`'
        in error
    )
    assert finished.stderr.count("inside a rank") == 1
    assert run.leftovers() == []


def test_ctrl_c_ends_the_ranks_and_leaves_a_run_to_resume(script: Script) -> None:
    run = script(_ENDLESS)
    run.wait_for_ranks(2)
    run.send(signal.SIGINT)
    finished = run.finish(30)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert f"scalescope resume {run.folder} continues" in finished.stdout.splitlines()[-1]
    assert {result["status"] for result in read_results(run.folder)} == {"interrupted"}
    assert is_unfinished(run.folder)
    assert run.leftovers() == []
