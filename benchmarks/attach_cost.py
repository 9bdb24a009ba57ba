"""What our hooks cost per step of a training script: on and off in alternating blocks inside one process.

    python benchmarks/attach_cost.py [--device cpu] [--steps 300] [--rounds 40]

The script is a small model with a DataLoader, so that every hook is used: optimizer, model input, backward,
loader. Each round has a block of steps under the hooks, inside their measured window, and a block without, in
random order. Prints the difference of typical steps with a 95 % interval over rounds.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from scalescope.analysis.statistics import mean_with_interval
from scalescope.catalog.benchmarks.train import Train
from scalescope.catalog.setting import settings_of
from scalescope.results.ranks.attach_job import AttachJob
from scalescope.results.ranks.heartbeat import Heartbeats
from scalescope.worker.attach.process_file import ProcessFile
from scalescope.worker.attach.session import Session

_BEFORE_WINDOW = 3 + 2 + 5  # events until the period is known, steps that are looked at, warm-up


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    step = training_step(torch.device(options.device), options.width)
    for _ in range(50):
        step()
    differences, plain = [], []
    order = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            blocks: list[Callable[[], float]] = [
                lambda: hooked_block(step, options.steps, Path(folder)),
                lambda: plain_block(step, options.steps),
            ]
            times = {}
            for number in order.sample((0, 1), k=2):
                times[number] = blocks[number]()
            differences.append((times[0] - times[1]) * 1e6)
            plain.append(times[1] * 1e6)
    cost = mean_with_interval(differences)
    print(
        json.dumps(
            {
                "device": options.device,
                "torch": torch.__version__,
                "step_us": round(statistics.median(plain), 1),
                "cost_us_per_step": round(cost.value, 2),
                "low": None if cost.low is None else round(cost.low, 2),
                "high": None if cost.high is None else round(cost.high, 2),
                "rounds": options.rounds,
                "steps_per_block": options.steps,
            }
        )
    )
    return 0


def training_step(device: torch.device, width: int) -> Callable[[], None]:
    """One step of a script with a loader."""
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ready = [torch.randn(16, width) for _ in range(1000)]  # what the loader does is not of interest here
    batches = itertools.chain.from_iterable(DataLoader(ready, batch_size=None) for _ in itertools.count())  # type: ignore[arg-type]

    def step() -> None:
        inputs = next(batches)
        model(inputs.to(device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def plain_block(step: Callable[[], None], count: int) -> float:
    """A typical step, in seconds: the lower quartile, which other processes hardly move."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.quantiles(times, n=4)[0]


def hooked_block(step: Callable[[], None], count: int, folder: Path) -> float:
    """The same under the hooks; only steps inside the window count."""
    session = Session(_job(folder, 2 * count), ProcessFile(_job(folder, 2 * count)))
    session.install()
    try:
        for _ in range(_BEFORE_WINDOW + 2):
            step()
        return plain_block(step, count)
    finally:
        session.remove()


def _job(folder: Path, steps: int) -> AttachJob:
    settings = {setting.name: setting.default_for("cpu") for setting in settings_of(Train)}
    settings |= {
        "benchmark": "train",
        "workload": "command",
        "strategy": "script",
        "device": "cpu",
        "world_size": 1,
        "window": 0.01,
        "min_steps": steps,
        "keep_running": True,
    }
    beats = folder / "beats"
    if not beats.exists():
        Heartbeats(beats, 1, create=True)
    return AttachJob(
        settings=settings,
        launch=0,
        world_size=1,
        directory=str(folder),
        rank_files=[str(folder / "rank.json")],
        heartbeat_file=str(beats),
        folder=str(folder),
        parent=os.getpid(),
        package_parent="",
    )


if __name__ == "__main__":
    sys.exit(main())
