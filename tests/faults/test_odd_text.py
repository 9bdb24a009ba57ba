"""Text that is not UTF-8, in messages, folders and host names: launches are recorded, codes are right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalescope.results.run import load_run
from tests.conftest import TINY, clean_environment
from tests.faults.conftest import Seen
from tests.gloo.real_runs import SCALESCOPE, RunsHere, read_results
from tests.speed import patience

pytestmark = [pytest.mark.gloo, pytest.mark.fault(40)]

_TRAIN = ("train", *TINY, "--no-breakdown", "--repeats=1")
_RAISING = """
import torch
from torch import nn

class Odd(nn.Linear):
    def forward(self, *arguments):
        raise RuntimeError("caf\\udce9 \\udcff \\x1b[31mred \\u202e")

def build():
    data = torch.utils.data.TensorDataset(torch.zeros(64, 4), torch.zeros(64, 4))
    return Odd(4, 4), data, nn.MSELoss()
"""


def test_a_message_with_broken_characters_is_a_failed_launch(run_here: RunsHere, seen: Seen) -> None:
    (run_here.directory / "odd.py").write_text(_RAISING)

    run = run_here("train", *TINY[:1], "--workload=odd.py:build", "--no-breakdown", "--repeats=1")

    assert run.returncode == 4
    (result,) = load_run(run.folder).results  # our own reader takes it
    assert result.status == "failed"
    assert result.reason is not None
    assert "caf\\udce9" in result.reason
    assert result.reason.isprintable()
    shown = run.stdout + run.stderr
    assert "caf\\udce9" in shown
    assert "\x1b" not in shown
    assert "Traceback" not in shown
    seen("a failed launch, its message spelled out, code 4")


# Gives itself a host name of its own where that is allowed.
_RENAMED = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.unshare(0x04000000) or libc.sethostname(b"caf\\xe9", 4)
os.execv(sys.executable, [sys.executable, "-m", "scalescope", *sys.argv[1:]])
"""


@pytest.mark.own_torch
def test_a_folder_and_a_host_with_latin_1_names(tmp_path: Path, seen: Seen) -> None:
    home = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(home)
    folder = Path(os.fsdecode(home)) / "run"

    ended = subprocess.run(
        [sys.executable, "-c", _RENAMED, *_TRAIN, "--output-dir=run"],
        cwd=home,
        env=clean_environment(SCALESCOPE_FAULT="raise@0:4"),
        capture_output=True,
        timeout=patience(120),
    )

    assert ended.returncode == 4, ended.stderr
    assert b"Traceback" not in ended.stderr
    (result,) = read_results(folder)
    assert result["status"] == "failed"
    assert result["log"].encode()  # no lone surrogate
    run = load_run(folder)
    assert [result.status for result in run.results] == ["failed"]
    host = run.environment["machine"]["host"]
    assert host.isprintable()
    seen(f"in a Latin-1 folder of the host {host}: code 4, the failed launch is recorded")


@pytest.mark.parametrize("flag", ["--output-dir", "--workload", "--name"])
def test_a_latin_1_name_in_a_flag_is_refused_in_one_line(flag: str, tmp_path: Path, seen: Seen) -> None:
    ended = subprocess.run(
        [*SCALESCOPE, "train", flag, b"caf\xe9.py:build"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        timeout=patience(),
    )

    assert ended.returncode == 2
    assert ended.stderr.startswith(b"scalescope: ")
    assert ended.stderr.count(b"\n") == 1
    assert b"caf\\udce9" in ended.stderr
    assert list(tmp_path.iterdir()) == []
    seen("a Latin-1 name in a flag: code 2, one line")
