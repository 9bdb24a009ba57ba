"""Secrets of the environment, --env and commands: in no file that is written, in nothing that is shown."""

import hashlib
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.faults.conftest import Seen
from tests.gloo.conftest import Start
from tests.gloo.real_runs import StartedRun

pytestmark = pytest.mark.gloo

_GIVEN = {"API_KEY": "planted-1-e7a41d", "DB_PASSWORD": "planted-2-9b03cf"}
_EXPORTED = {
    "AWS_SECRET_ACCESS_KEY": "planted-3-5f2c77",
    "HF_TOKEN": "planted-4-d81e20",
    "NCCL_AUTH_TOKEN": "planted-5-0a6b3e",  # its prefix is on the allow-list
    "SOME_NAME": "planted-6-c4418a",
}
_PLANTED = b"planted-"
_WORKLOAD = """
import hashlib
import os
import torch
from torch import nn

def build():
    assert hashlib.sha256(os.environ["API_KEY"].encode()).hexdigest() == "{digest}"
    return nn.Linear(2, 2), [(torch.zeros(2), torch.zeros(2))] * 64, nn.functional.mse_loss
"""


_SCRIPT = """
import hashlib
import sys
import torch
import part

assert hashlib.sha256(repr(sys.argv[1:5]).encode()).hexdigest() == "{digest}"
if part.FAILS:  # and prints its arguments before that, as many scripts do
    print(sys.argv, flush=True)
    raise ValueError("cannot use " + sys.argv[2])
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10_000):
    optimizer.zero_grad()
    model(torch.zeros(2, 2)).sum().backward()
    optimizer.step()
"""


def _files(*roots: Path) -> Iterator[Path]:
    for root in roots:
        paths = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
        yield from (path for path in paths if path.is_file() and not path.is_symlink())


def _holding_a_secret(*roots: Path) -> set[str]:
    """The files below folders that hold a secret now; what vanishes meanwhile is left out."""
    holding = set()
    for path in _files(*roots):
        try:
            if _PLANTED in path.read_bytes():
                holding.add(str(path))
        except OSError:
            continue
    return holding


def _holding_while_running(run: StartedRun, *roots: Path) -> set[str]:
    """The files that held a secret at any time, with those that ranks share in memory."""
    holding: set[str] = set()
    while run.processes():
        launches = [folder for folder in Path("/dev/shm").glob("scalescope-launch-*") if folder.is_dir()]
        holding |= _holding_a_secret(*roots, *launches)
        time.sleep(0.3)
    return holding


@pytest.mark.basic
@pytest.mark.fault(49)
def test_secrets_are_in_no_file_and_reach_the_ranks(start: Start, tmp_path: Path, seen: Seen) -> None:
    digest = hashlib.sha256(_GIVEN["API_KEY"].encode()).hexdigest()
    (tmp_path / "own.py").write_text(_WORKLOAD.format(digest=digest))
    folders = {name: tmp_path / name for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_DATA_HOME")}
    for folder in folders.values():
        folder.mkdir()
    variables = {**_EXPORTED, **{name: str(folder) for name, folder in folders.items()}}
    flags = [flag for flag in TINY if "dim" not in flag and "layers" not in flag]
    given = [f"--env={name}={value}" for name, value in _GIVEN.items()]
    run = start("train", "--workload=own.py:build", "--no-breakdown", *flags, *given, **variables)
    while_running = _holding_while_running(run, tmp_path)
    finished = run.finish()
    assert (finished.returncode, [result["status"] for result in finished.results]) == (0, ["ok"])
    assert while_running == set()
    assert _holding_a_secret(tmp_path) == set()
    assert finished.results[0]["settings"]["env"] == dict.fromkeys(_GIVEN, "<redacted>")
    repeated = start("train", "run/experiment.yaml", folder="repeated", **variables).finish()
    assert repeated.returncode == 3
    assert "the value of API_KEY was not stored" in repeated.stderr.splitlines()[-1]
    assert _holding_a_secret(tmp_path) == set()
    seen("6 secrets planted, all files of the run, of caches and of TMPDIR searched: none; ranks got them")


@pytest.mark.fault(56)
def test_secrets_of_a_command_are_in_no_file_and_in_nothing_shown(
    start: Start, tmp_path: Path, seen: Seen
) -> None:
    given = ["--token", "planted-7-13e0b5", "--db", "postgres://u:planted-8-77ac1e@h"]
    script, part = tmp_path / "script.py", tmp_path / "part.py"
    script.write_text(_SCRIPT.format(digest=hashlib.sha256(repr(given).encode()).hexdigest()))
    part.write_text("FAILS = False\n")
    (tmp_path / "TMPDIR").mkdir()
    variables = {"TMPDIR": str(tmp_path / "TMPDIR")}
    command = f"--command={shlex.join([sys.executable, 'script.py', *given])}"
    flags = ("train", command, "--device=cpu", "--no-breakdown", "--window=0.2", "--no-repeat-disturbed")
    run = start(*flags, **variables)
    while_running = _holding_while_running(run, tmp_path)
    finished = run.finish()
    assert (finished.returncode, [result["status"] for result in finished.results]) == (0, ["ok"])
    assert while_running == set()
    files = finished.results[0]["ranks"][0]["tables"]["script_files"]
    assert [row["path"] for row in files] == [str(part), str(script)]
    refused = start("train", "run/experiment.yaml", folder="repeated", **variables).finish()
    assert refused.returncode == 3
    assert "set SCALESCOPE_SECRET_TOKEN" in refused.stderr.splitlines()[-1]
    part.write_text("FAILS = True\n")
    failed = start(*flags, folder="failed", **variables).finish()
    assert "ValueError: cannot use <redacted>" in failed.results[0]["reason"]
    assert "'--token', '<redacted>'" in failed.log(failed.results[0], 0)
    assert _holding_a_secret(tmp_path) == set()  # what was shown is in files too
    seen("2 secrets on a measured command line, all files and the output searched: none; its ranks got them")
