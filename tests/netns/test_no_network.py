"""A machine with a loopback device alone: real ranks train, and nothing listens beyond it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TINY, clean_environment
from tests.speed import patience

pytestmark = [pytest.mark.netns, pytest.mark.own_torch]

# Starts the command, and collects the addresses that anything in the namespace listens on meanwhile.
_WATCHER = """
import json, subprocess, sys, time

def listening():
    for name in ("tcp", "tcp6"):
        with open("/proc/net/" + name) as file:
            rows = [line.split() for line in file][1:]
        yield from (row[1].rpartition(":")[0] for row in rows if row[3] == "0A")

command = subprocess.Popen(sys.argv[2:])
addresses = set()
while command.poll() is None:
    addresses.update(listening())
    time.sleep(0.02)
with open(sys.argv[1], "w") as file:
    json.dump({"code": command.returncode, "addresses": sorted(addresses)}, file)
"""
_LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


def test_ranks_train_without_a_network_and_listen_on_loopback_alone(tmp_path: Path) -> None:
    (tmp_path / "watcher.py").write_text(_WATCHER)
    words = [sys.executable, "-m", "scalescope", "train", "--world-size=2", "--output-dir=run", *TINY]
    script = 'ip link set lo up && exec "$@"'
    subprocess.run(
        ["unshare", "--net", "sh", "-c", script, "sh", sys.executable, "watcher.py", "seen.json", *words],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=patience(120),
    )
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["code"] == 0
    assert seen["addresses"], "not even gloo's own sockets were seen"
    assert set(seen["addresses"]) <= _LOOPBACK
