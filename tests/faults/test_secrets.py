"""Secrets in the environment and in --env: in no file that is written, and in nothing that is shown."""

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.faults.conftest import Seen
from tests.gloo.conftest import Start

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


def _files(*roots: Path) -> Iterator[Path]:
    for root in roots:
        yield from (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


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
    memory = Path("/dev/shm")
    while_running: set[str] = set()
    while run.processes():
        launches = [folder for folder in memory.glob("scalescope-launch-*") if folder.is_dir()]
        while_running |= _holding_a_secret(tmp_path, *launches)
        time.sleep(0.3)
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
