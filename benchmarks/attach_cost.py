"""What our hooks cost per step of a training script: on and off in alternating blocks inside one process.

    python benchmarks/attach_cost.py [--device cpu] [--steps 20] [--pairs 2000]

The script is a small model with a DataLoader, so that every hook of the window is used: optimizer and loader
(those on the model and its backward pass are gone by then). Each pair has a block of steps under the hooks,
inside their measured window, and a block without, in random order. Prints the median difference per step with
its 95 % interval over pairs; with --cpu-time in the thread's CPU time, which other processes disturb less.
"""

import argparse
import itertools
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from commands.gpt_script import GPT
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from scalescope.catalog.benchmarks.train import Train
from scalescope.catalog.setting import settings_of
from scalescope.results.ranks import AttachJob, Heartbeats
from scalescope.worker.hooks.process_file import ProcessFile
from scalescope.worker.hooks.session import Session

_AFTER_CHANGE = 10  # steps
_BEFORE_WINDOW = 3 + 2 + 5  # events until the period is known, steps that are looked at, warm-up


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=20, help="per block")
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--gpt", action="store_true", help="a step as real scripts have it, for a GPU")
    options = parser.parse_args(argv)
    now = time.thread_time if options.cpu_time else time.perf_counter
    torch.set_num_threads(1)
    device = torch.device(options.device)
    step = gpt_step(device) if options.gpt else training_step(device, options.width)
    differences, plain = [], []
    order = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        hooks = Hooks(step, Path(folder), 2 * (options.steps + _AFTER_CHANGE) * options.pairs)
        for _ in range(options.pairs):
            times = {}
            for is_on in order.sample((True, False), k=2):
                (hooks.put_back if is_on else hooks.take_away)()
                for _ in range(_AFTER_CHANGE):  # Python adapts to what was put in place
                    step()
                times[is_on] = block(step, options.steps, now)
            differences.append((times[True] - times[False]) * 1e6)
            plain.append(times[False] * 1e6)
        hooks.take_away()
    low, middle, high = median_with_interval(differences)
    print(
        json.dumps(
            {
                "device": options.device,
                "torch": torch.__version__,
                "step_us": round(statistics.median(plain), 1),
                "cost_us_per_step": round(middle, 2),
                "low": round(low, 2),
                "high": round(high, 2),
                "high_percent": round(100 * high / statistics.median(plain), 2),
                "pairs": options.pairs,
                "steps_per_block": options.steps,
            }
        )
    )
    return 0


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and its 95 % interval by order statistics, which no outlier moves."""
    ordered = sorted(values)
    half = 1.96 * math.sqrt(len(ordered)) / 2
    middle = len(ordered) / 2
    return ordered[int(middle - half)], statistics.median(ordered), ordered[math.ceil(middle + half)]


class Hooks:
    """The hooks of a session inside its measured window, which can be taken away and put back."""

    def __init__(self, step: Callable[[], None], folder: Path, steps: int) -> None:
        self._plain_next = _BaseDataLoaderIter.__next__
        self._session = Session(_job(folder, steps), ProcessFile(_job(folder, steps)))
        self._session.install()
        for _ in range(_BEFORE_WINDOW + 50):
            step()
        self._timed_next = _BaseDataLoaderIter.__next__
        self._is_on = True

    def take_away(self) -> None:
        if self._is_on:
            self._session._optimizers.remove()
            _BaseDataLoaderIter.__next__ = self._plain_next  # type: ignore[method-assign]
            self._is_on = False

    def put_back(self) -> None:
        if not self._is_on:
            self._session._optimizers.install()
            self._session._settle_optimizers(self._session._measuring.tick)
            _BaseDataLoaderIter.__next__ = self._timed_next  # type: ignore[method-assign]
            self._is_on = True


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


def block(step: Callable[[], None], count: int, now: Callable[[], float]) -> float:
    """The time per step, in seconds; a GPU has done all of them."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    began = now()
    for _ in range(count):
        step()
    wait()
    return (now() - began) / count


def gpt_step(device: torch.device) -> Callable[[], None]:
    """One step of a GPT of 163 M parameters in tf32, from a loader: the GPU is what it waits for."""
    torch.set_float32_matmul_precision("high")
    model = GPT(12, 768, 12, 512).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ready = [torch.randint(0, 1000, (12, 513)) for _ in range(200)]
    batches = itertools.chain.from_iterable(DataLoader(ready, batch_size=None) for _ in itertools.count())  # type: ignore[arg-type]

    def step() -> None:
        tokens = next(batches).to(device)
        loss = model(tokens[:, :-1], tokens[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


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
