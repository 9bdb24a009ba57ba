"""The cost of our data parallelism from scratch relative to PyTorch's: both interleaved on two gloo ranks.

    python benchmarks/scratch_ddp.py [--launches 10] [--blocks 20] [--bucket-cap-mb 50] [--ablation noop_comm]

In every launch two ranks take turns with both on the same MLP, in random order. The launch's ratio is that of
the median times per step, scratch_ddp over ddp; the interval is Student's t over the launches.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from scalescope.analysis.statistics import mean_of_logs
from scalescope.catalog import cards
from scalescope.catalog.setting import settings_of
from scalescope.experiment.trial import Trial
from scalescope.results.ranks import Heartbeats
from scalescope.worker.process.group import Group
from scalescope.worker.process.position import Position
from scalescope.worker.training.assembly import build_step, build_workload
from scalescope.worker.training.step import Batches, Step, StepMaker

RANKS = 2
STRATEGIES = ("ddp", "scratch_ddp")
STEPS = 5  # per turn: long enough to hide its barrier, short enough that machine load affects both
CPU = torch.device("cpu")


def trial_of(strategy: str, asked: dict[str, Any]) -> Trial:
    """The MLP on two ranks, with the strategy's defaults except for `asked`."""
    selection = {"workloads": "mlp", "data": "synthetic", "strategies": strategy}
    owners = cards.cards_of_trial("train", selection)
    known = {setting.name: setting.default_for("cpu") for owner in owners for setting in settings_of(owner)}
    return Trial(settings={"benchmark": "train", **known, "strategy": strategy, "world_size": RANKS, **asked})


def time_turn(step: Step, batches: Batches, position: Position) -> float:
    """Seconds per step of one turn that both ranks begin together."""
    dist.barrier()
    begin = time.perf_counter()
    maker = StepMaker(step, batches, position)
    for _ in range(STEPS):
        maker.make()
    return (time.perf_counter() - begin) / STEPS


def run_rank(rank: int, seed: int, blocks: int, asked: dict[str, Any], directory: Path) -> None:
    """One rank of a launch; the times of all turns go into a file."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(directory / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    beats = directory / f"beats-{rank}"
    Heartbeats(beats, 1, create=True)
    position = Position(beats, 0, 1)
    group = Group(rank=rank, world_size=RANKS, joined=True)
    steps, batches = {}, {}
    for strategy in STRATEGIES:
        trial = trial_of(strategy, asked)
        workload = build_workload(trial, group, CPU)
        steps[strategy] = build_step(trial, workload, CPU)
        assert workload.data.synthesize is not None
        ready = workload.data.synthesize(asked["batch_size"], torch.Generator().manual_seed(rank))
        batches[strategy] = itertools.cycle([ready])
        time_turn(steps[strategy], batches[strategy], position)  # DDP rebuilds its buckets here
    times: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
    orders = random.Random(seed)  # the same on both ranks, otherwise they would deadlock
    for _ in range(blocks):
        for strategy in orders.sample(STRATEGIES, k=len(STRATEGIES)):
            times[strategy].append(time_turn(steps[strategy], batches[strategy], position))
    (directory / f"times-{rank}.json").write_text(json.dumps(times))
    del steps
    dist.barrier()
    dist.destroy_process_group()


def launch(seed: int, blocks: int, asked: dict[str, Any]) -> dict[str, float]:
    """Median seconds per step by strategy; a turn takes as long as its slower rank."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        ranks = [
            context.Process(target=run_rank, args=(rank, seed, blocks, asked, directory))
            for rank in range(RANKS)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        assert all(rank.exitcode == 0 for rank in ranks), "a rank failed"
        times = [json.loads((directory / f"times-{rank}.json").read_text()) for rank in range(RANKS)]
    return {
        strategy: statistics.median(map(max, zip(*(of_rank[strategy] for of_rank in times), strict=True)))
        for strategy in STRATEGIES
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--bucket-cap-mb", type=float, default=50.0)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--hidden-dim", type=int, default=1024)
    parser.add_argument("--ablation", choices=("none", "noop_comm"), default="none")
    arguments = parser.parse_args()
    asked = {
        name: getattr(arguments, name) for name in ("bucket_cap_mb", "batch_size", "hidden_dim", "ablation")
    }
    asked["input_dim"] = arguments.hidden_dim
    medians = [launch(seed, arguments.blocks, asked) for seed in range(arguments.launches)]
    ratio = mean_of_logs([math.log(median["scratch_ddp"] / median["ddp"]) for median in medians])
    print(f"{arguments.launches} launches of {RANKS} gloo ranks, torch {torch.__version__}, {asked}")
    for strategy in STRATEGIES:
        print(
            f"  {strategy}: {1e3 * statistics.median(median[strategy] for median in medians):.3f} ms per step"
        )
    print(f"ratio scratch_ddp/ddp: {ratio.value:.4f}", end="")
    print("" if ratio.low is None or ratio.high is None else f" [{ratio.low:.4f}, {ratio.high:.4f}]")


if __name__ == "__main__":
    main()
