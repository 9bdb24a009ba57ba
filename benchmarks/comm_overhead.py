"""The overhead of measuring collectives: a bare torch.distributed loop and ours on two gloo ranks.

    python benchmarks/comm_overhead.py [--seconds 6]

Prints the ratio of median times, ours over bare, for all-reduces of 1 KiB to 64 MiB, and the median of these
ratios. Both loops use the same buffer and take turns every five iterations, in a random order that both ranks
share, so that other load on the machine affects both. Every rank is pinned to its own core.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

from scalescope.catalog.benchmarks.comm import Comm
from scalescope.catalog.setting import settings_of
from scalescope.cores import own_cores, share_of
from scalescope.worker.benchmarks.comm import CommRun, _iterate
from scalescope.worker.collectives import all_reduce
from scalescope.worker.comm.operation import Operation, Shape
from scalescope.worker.process.group import Group, join
from scalescope.worker.process.position import Position
from scalescope.worker.process.rank import pin_to
from scalescope.worker.training.measurements import Measurements

RANKS = 2
SIZES = [1 << power for power in range(10, 27, 2)]
BLOCK = 5  # iterations before the other loop runs


def bare_loop(buffer: torch.Tensor, count: int) -> list[float]:
    """A hand-written loop."""
    times = []
    dist.barrier()
    for _ in range(count):
        begin = time.perf_counter()
        dist.all_reduce(buffer)
        times.append(time.perf_counter() - begin)
    return times


def buffer_of(operation: Operation) -> torch.Tensor:
    """The tensor an all-reduce works on."""
    buffers: list[torch.Tensor] = []
    with mock.patch.object(dist, "all_reduce", buffers.append):
        operation.run()
    return buffers[0]


def comm_run(group: Group, device: torch.device) -> CommRun:
    """The context of our loop, with default options."""
    options = Comm(**{setting.name: setting.default_for("cpu") for setting in settings_of(Comm)})
    return CommRun(
        options=options,
        group=group,
        device=device,
        position=Position(None, group.rank, RANKS),
        fault=None,
        measurements=Measurements(),
    )


def agreed_blocks(run: CommRun, operation: Operation, seconds: float) -> int:
    """Pairs of blocks that fit into the time, decided by rank 0."""
    first = min(_iterate(run, operation, 5))
    count = torch.tensor([min(max(int(seconds / (2 * BLOCK * first)), 20), 2000)])
    dist.broadcast(count, src=0)
    return int(count)


def measure(size: int, seconds: float, group: Group) -> float:
    """Time of an iteration, ours over bare, at one size."""
    device = torch.device("cpu")
    shape = Shape(
        rank=group.rank, ranks=RANKS, count=size // 4, dtype=torch.float32, device=device, in_place=True
    )
    operation, run = all_reduce.prepare(shape), comm_run(group, device)
    buffer = buffer_of(operation).zero_()
    loops = {
        "bare": lambda: bare_loop(buffer, BLOCK),
        "ours": lambda: _iterate(run, operation, BLOCK),
    }
    times: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(agreed_blocks(run, operation, seconds)):
        for name in random.sample(sorted(loops), k=2):
            times[name] += loops[name]()
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = medians["ours"] / medians["bare"]
    if group.rank == 0:
        shown = ", ".join(f"{name} {value * 1e6:>9.1f} µs" for name, value in medians.items())
        print(f"{size:>10} bytes: {shown}, ratio {ratio:.4f} ({len(times['ours'])} each)", flush=True)
    return ratio


def rank_main(rank: int, store: str, seconds: float) -> None:
    pin_to(share_of(own_cores(), 1, RANKS, rank))
    torch.set_num_threads(1)
    random.seed(0)  # the same order on all ranks
    group = join(
        dist.FileStore(store, RANKS),
        backend="gloo",
        rank=rank,
        world_size=RANKS,
        device=torch.device("cpu"),
        timeout_s=600,
    )
    ratios = [measure(size, seconds, group) for size in SIZES]
    if rank == 0:
        print(f"median ratio over sizes: {statistics.median(ratios):.4f}", flush=True)
    group.leave()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="time for each size")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        rank_main(arguments.rank, arguments.store, arguments.seconds)
        return
    print(f"{RANKS} gloo ranks, {arguments.seconds:g} s per size, torch {torch.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, f"--store={Path(directory) / 'store'}"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
        ranks = [
            subprocess.Popen([*command, f"--rank={rank}", f"--seconds={arguments.seconds}"], env=environment)
            for rank in range(RANKS)
        ]
        sys.exit(max(abs(rank.wait()) for rank in ranks))


if __name__ == "__main__":
    main()
