"""The overhead of the harness: a hand-written loop and ours, interleaved on one model in one process.

    python benchmarks/overhead.py [--device cpu|cuda] [--blocks 40]

Prints the ratio of the medians of the time per step, ours over bare, with a bootstrap interval over blocks.
"""

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from scalescope.catalog import cards
from scalescope.catalog.setting import settings_of
from scalescope.experiment.trial import Trial
from scalescope.results.ranks import Heartbeats
from scalescope.worker.benchmarks.train import OwnLoop, StepSchedule
from scalescope.worker.engine.steps import driven
from scalescope.worker.process.group import Group
from scalescope.worker.process.position import Position
from scalescope.worker.training.assembly import build_feed, build_step, build_workload
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.step import Batches, Step, StepMaker, Workload

# CPU: a step of about 10 ms, where an overhead of 0.1 ms would show. GPU: 1 to 3 ms, where launches matter.
SIZES = {"cpu": {"width": 512, "batch": 128, "steps": 2}, "cuda": {"width": 4096, "batch": 256, "steps": 50}}


def trial_for(device: str, width: int) -> Trial:
    """A plain single-rank trial of the default workload."""
    settings = {"benchmark": "train", "device": device, "world_size": 1}
    chosen = cards.cards_of_trial("train", {"workloads": "mlp", "data": "synthetic", "strategies": "single"})
    for owner in chosen:
        for setting in settings_of(owner):
            settings.setdefault(setting.name, setting.default_for(device))
    batch = SIZES[device]["batch"]
    settings |= {"strategy": "single", "hidden_dim": width, "input_dim": width, "batch_size": batch}
    return Trial(settings=settings)


def bare_loop(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches, steps: int) -> None:
    """A hand-written loop."""
    for _ in range(steps):
        inputs, targets = next(batches)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def time_block(device: torch.device, run: object, steps: int) -> float:
    synchronise = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    synchronise()
    begin = time.perf_counter()
    run()  # type: ignore[operator]
    synchronise()
    return (time.perf_counter() - begin) / steps


def measure(device: torch.device, blocks: int) -> dict[str, list[float]]:
    """Seconds per step of every block, by loop; the two take turns in random order."""
    size = SIZES[device.type]
    trial = trial_for(device.type, size["width"])
    alone = Group(rank=0, world_size=1, joined=False)
    workload: Workload = build_workload(trial, alone, device)
    step: Step = build_step(trial, workload, device)
    feed = build_feed(trial, workload, alone, device)
    batches = feed.batches
    steps = size["steps"]
    with tempfile.TemporaryDirectory() as directory:
        beats = Path(directory) / "beats"
        Heartbeats(beats, 1, create=True)
        position = Position(beats, 0, 1)
        publish_every = 20 if device.type == "cuda" else 5  # as in a window: every 50 ms
        loop = OwnLoop(
            workload=workload,
            feed=feed,
            steps=StepMaker(step, batches, position),
            schedule=StepSchedule(None, 1, None, 1),
            trial=trial,
            group=alone,
            device=device,
            position=position,
            fault=None,
            known=Measurements(),
        )
        loops = {
            "bare": lambda: bare_loop(workload.model, step.optimizer, batches, steps),
            "ours": lambda: driven(loop.engine.timed(steps, publish_every=publish_every), loop.make_step),
        }
        for make in loops.values():
            time_block(device, make, steps)
        times: dict[str, list[float]] = {name: [] for name in loops}
        for _ in range(blocks):
            for name in random.sample(sorted(loops), k=2):
                times[name].append(time_block(device, loops[name], steps))
    return times


def bootstrap(times: dict[str, list[float]], draws: int = 2000) -> tuple[float, float]:
    """95 % interval of the ratio of medians, blocks drawn in pairs."""
    pairs = list(zip(times["ours"], times["bare"], strict=True))
    ratios = []
    for _ in range(draws):
        drawn = random.choices(pairs, k=len(pairs))
        ratios.append(statistics.median(o for o, _ in drawn) / statistics.median(b for _, b in drawn))
    ratios.sort()
    return ratios[int(0.025 * draws)], ratios[int(0.975 * draws)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--blocks", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    times = measure(torch.device(arguments.device), arguments.blocks)
    medians = {name: statistics.median(values) for name, values in times.items()}
    low, high = bootstrap(times)
    print(f"device {arguments.device}, {arguments.blocks} blocks each, torch {torch.__version__}")
    for name, value in medians.items():
        print(f"  {name}: {value * 1e3:.3f} ms per step (median of blocks)")
    print(f"ratio ours/bare: {medians['ours'] / medians['bare']:.4f} [{low:.4f}, {high:.4f}]")


if __name__ == "__main__":
    main()
