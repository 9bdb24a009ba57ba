"""A rank's process: its errors, its end, its temporary files, and faults that add time to every step."""

import multiprocessing.process
import multiprocessing.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import BadInput
from scalescope.worker.process import faults
from scalescope.worker.process.faults import fault_of
from scalescope.worker.process.rank import describe_error
from scalescope.worker.process.temporary_files import use_directory


def test_running_out_of_memory_is_marked() -> None:
    assert describe_error(MemoryError())["out_of_memory"]
    assert not describe_error(RuntimeError("CUDA error: an illegal memory access"))["out_of_memory"]


def test_a_message_is_one_line_that_can_be_printed_and_stored() -> None:
    path = os.fsdecode(b"/data/\xff.bin")
    assert describe_error(OSError(f"no {path}\x1b[31m\x00\nmore"))["message"] == (
        "OSError: no /data/\\udcff.bin\\x1b[31m\\x00"
    )
    assert describe_error(BadInput(""))["message"] == ""


def test_a_message_that_goes_on_in_the_next_line_is_not_cut_there() -> None:
    error = RuntimeError(
        "parameters were not used, \nwhich you can allow by \npassing an argument.\nSee more"
    )
    assert describe_error(error)["message"] == (
        "RuntimeError: parameters were not used, which you can allow by passing an argument."
    )


@pytest.mark.parametrize(
    "output",
    ["sys.stdout.close()", "sys.stdout = open('/dev/full', 'w'); print('lost')", "print('kept')"],
    ids=["closed", "full", "usual"],
)
def test_a_rank_leaves_with_its_code(output: str) -> None:
    script = (
        f"import sys; from scalescope.worker.process.main import leave_process; {output}; leave_process(3)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (3, "")
    assert run.stdout == ("kept\n" if "kept" in output else "")


@pytest.fixture
def configuration(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    monkeypatch.setattr(multiprocessing.process.current_process(), "_config", changed)
    return changed


def test_multiprocessing_uses_the_directory(configuration: dict[str, Any], tmp_path: Path) -> None:
    directory = tmp_path if len(str(tmp_path)) < 80 else Path("/tmp")
    use_directory(directory)
    assert multiprocessing.util.get_temp_dir() == str(directory)


@pytest.mark.parametrize("name", ["nowhere", "x" * 100])
def test_a_directory_that_cannot_be_used_is_not(
    configuration: dict[str, Any], tmp_path: Path, name: str
) -> None:
    if len(name) == 100:
        (tmp_path / name).mkdir()
    use_directory(tmp_path / name)
    assert configuration == {}


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was slept, without sleeping."""
    times: list[float] = []
    monkeypatch.setattr(faults.clocks, "sleep", times.append)
    return times


def ten_steps(monkeypatch: pytest.MonkeyPatch, text: str, rank: int = 1) -> None:
    monkeypatch.setenv("SCALESCOPE_FAULT", text)
    fault = fault_of(rank)
    assert fault is not None
    for step in range(10):
        fault.at_step(step)


@pytest.mark.parametrize(("text", "time_s"), [("slow@1:0", 0.2), ("slow:15@1:0", 0.015)])
def test_a_slow_rank_is_late_in_every_step(
    text: str, time_s: float, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    ten_steps(monkeypatch, text)
    assert slept == [time_s] * 10


def test_jitter_differs_from_step_to_step_and_stays_within_twice_its_mean(
    slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    ten_steps(monkeypatch, "jitter:20@all:0", rank=0)
    assert len(set(slept)) == 10
    assert all(0.0 <= time_s <= 0.04 for time_s in slept)


def test_a_hiccup_comes_once_in_ten_steps(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    ten_steps(monkeypatch, "hiccup:80@1:0")
    assert slept == [0.08] + [0.0] * 9


def test_other_ranks_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALESCOPE_FAULT", "slow:15@1:0")
    assert fault_of(0) is None
