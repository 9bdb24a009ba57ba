"""How well --dry-run estimates: the duration it names against that of the run, for small jobs.

    python benchmarks/estimates.py [--folder FOLDER] [--only NAME]

Every job is estimated in an empty folder, run by its command, and estimated again beside its own run. Prints
each estimate divided by the duration. Takes some minutes; FOLDER keeps what is done, so that it can go on.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from null_watcher import NullWatcher

from scalescope.experiment.given import Given
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.studies.dry_run import estimated_run
from scalescope.studies.prepared import host_of, prepare
from scalescope.studies.request import Request
from scalescope.studies.stored import find_study

OWN_MODEL = """
import torch
from torch import nn

def build():
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
    data = torch.utils.data.TensorDataset(torch.randn(2048, 512), torch.randn(2048, 512))
    return model, data, nn.MSELoss()
"""
JOBS: dict[str, tuple[str, dict[str, str]]] = {
    "mlp, window": ("train", {"window": "5s"}),
    "mlp, 2 ranks, steps": ("train", {"world_size": "2", "steps_per_epoch": "30", "repeats": "2"}),
    "transformer, steps": ("train", {"workload": "transformer", "batch_size": "4", "steps_per_epoch": "12"}),
    "cnn, window": ("train", {"workload": "cnn", "batch_size": "16", "window": "2s", "repeats": "2"}),
    "scale, 2 ranks": ("scale", {"world_size": "1,2", "batch_size": "32", "window": "1s", "repeats": "2"}),
    "comm": ("comm", {"world_size": "2", "max_bytes": "1M"}),
    "memory": ("memory", {"batch_size": "4,8"}),
    "own workload, steps": (
        "train",
        {"workload": "model.py:build", "batch_size": "64", "steps_per_epoch": "100", "repeats": "2"},
    ),
}


def estimate(verb: str, settings: dict[str, str]) -> tuple[float, str]:
    """What --dry-run would say in the current folder: seconds, and from what they are estimated."""
    kind = find_study(verb)
    assert kind is not None
    study, began = kind(), time.monotonic()
    flags = {name: tuple(Given(part, name) for part in text.split(",")) for name, text in settings.items()}
    request = Request(verb=verb, benchmark=study.benchmark, flags=flags, dry_run=True)
    launcher = LocalLauncher()
    try:
        plan = prepare(study, request).on(host_of(launcher)).plan
        return estimated_run(plan, began, launcher, NullWatcher())
    finally:
        launcher.close()


def run(verb: str, settings: dict[str, str]) -> float:
    """How long the command takes, in seconds."""
    flags = [f"--{name.replace('_', '-')}={text}" for name, text in settings.items()]
    began = time.monotonic()
    command = [sys.executable, "-m", "scalescope", verb, *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def measure(name: str, folder: Path) -> dict[str, Any]:
    """One job: estimated with nothing known, run, and estimated with its own run known."""
    verb, settings = JOBS[name]
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(OWN_MODEL)
    with contextlib.chdir(folder):
        before_s, basis = estimate(verb, settings)
        load = os.getloadavg()[0]
        took_s = run(verb, settings)
        after_s, learnt = estimate(verb, settings)
    return {
        "name": name,
        "took_s": took_s,
        "before_s": before_s,
        "basis": basis,
        "after_s": after_s,
        "learnt": learnt,
        "load": load,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("estimates"))
    parser.add_argument("--only", choices=JOBS)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    done_file = arguments.folder / "done.jsonl"
    lines = done_file.read_text().splitlines() if done_file.exists() else []
    done = {row["name"]: row for row in map(json.loads, lines)}
    print(
        f"{'job':<22} {'took':>7} {'before':>8} {'ratio':>6}  {'basis':<17} {'after':>7} {'ratio':>6}  load"
    )
    for name in [arguments.only] if arguments.only else JOBS:
        if name not in done:
            place = arguments.folder / f"{name.replace(', ', '-').replace(' ', '-')}-{time.time_ns()}"
            done[name] = measure(name, place.absolute())
            with done_file.open("a") as stream:
                stream.write(json.dumps(done[name]) + "\n")
        print(shown(done[name]), flush=True)


def shown(row: dict[str, Any]) -> str:
    """A job's line: how long it took, and both estimates with their ratio to that."""
    before, after = row["before_s"] / row["took_s"], row["after_s"] / row["took_s"]
    first = f"{row['name']:<22} {row['took_s']:>5.1f} s {row['before_s']:>6.1f} s {before:>6.2f}"
    return f"{first}  {row['basis']:<17} {row['after_s']:>5.1f} s {after:>6.2f} {row['load']:>5.1f}"


if __name__ == "__main__":
    main()
