"""Learns what torch can do here, without importing it into this process."""

import json
import subprocess
import sys
from typing import Any

from scalescope.errors import CannotRun
from scalescope.experiment.machine import Machine

_LIMIT_S = 300
_LEAST_TORCH = (2, 6)


def probe_in_new_process() -> dict[str, Any]:
    """Run the worker's probe as a process of its own."""
    command = [sys.executable, "-m", "scalescope.worker.probe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise CannotRun(f"looking at the machine took longer than {_LIMIT_S} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CannotRun(f"torch cannot be used here: {last}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def machine_from_probe(raw: dict[str, Any]) -> Machine:
    """The probe's facts, refused where torch is too old to be measured."""
    machine = Machine.from_json(raw)
    version = machine.torch_version.partition("+")[0].split(".")
    numbers = tuple(int(part) for part in version[:2] if part.isdigit())
    if numbers < _LEAST_TORCH:
        raise CannotRun(f"torch {machine.torch_version} is too old; 2.6 or newer is needed")
    return machine
