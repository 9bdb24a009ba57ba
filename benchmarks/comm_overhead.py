"""What measuring collectives costs: a bare torch.distributed loop and ours, interleaved on two gloo ranks.

    python benchmarks/comm_overhead.py [--seconds 6]

Prints the ratio of median times, ours over bare, for all-reduces of 1 KiB to 64 MiB, and the median of these
ratios. Both loops use the same buffer and take turns every five iterations, in a random order that both ranks
share, so that whatever else the machine does meets both. Every rank is pinned to a core of its own.
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

from scalescope.cores import own_cores, share_of
from scalescope.worker.benchmarks.comm import _iterate
from scalescope.worker.collectives import all_reduce
from scalescope.worker.comm.operation import Operation, Shape
from scalescope.worker.process.group import Group, join
from scalescope.worker.process.position import Position
from scalescope.worker.process.rank import pin_to

RANKS = 2
SIZES = [1 << power for power in range(10, 27, 2)]
BLOCK = 5  # iterations before the other loop has its turn


def bare_loop(buffer: torch.Tensor, count: int) -> list[float]:
    """What a person would write."""
    times = []
    dist.barrier()
    for _ in range(count):
        begin = time.perf_counter()
        dist.all_reduce(buffer)
        times.append(time.perf_counter() - begin)
    return times


def buffer_of(operation: Operation) -> torch.Tensor:
    """The tensor an all-reduce works on."""
    found: list[torch.Tensor] = []
    with mock.patch.object(dist, "all_reduce", found.append):
        operation.run()
    return found[0]


def agreed_blocks(operation: Operation, group: Group, device: torch.device, seconds: float) -> int:
    """Pairs of blocks that fit into the time, decided by rank 0."""
    first = min(_iterate(operation, 5, group, device, Position(None, group.rank, RANKS)))
    count = torch.tensor([min(max(int(seconds / (2 * BLOCK * first)), 20), 2000)])
    dist.broadcast(count, src=0)
    return int(count)


def measure(size: int, seconds: float, group: Group) -> float:
    """Time of an iteration, ours over bare, at one size."""
    device = torch.device("cpu")
    shape = Shape(
        rank=group.rank, ranks=RANKS, count=size // 4, dtype=torch.float32, device=device, in_place=True
    )
    operation = all_reduce.prepare(shape)
    buffer = buffer_of(operation).zero_()
    loops = {
        "bare": lambda: bare_loop(buffer, BLOCK),
        "ours": lambda: _iterate(operation, BLOCK, group, device, Position(None, group.rank, RANKS)),
    }
    times: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(agreed_blocks(operation, group, device, seconds)):
        for name in random.sample(sorted(loops), k=2):
            times[name] += loops[name]()
    medians = {name: statistics.median(found) for name, found in times.items()}
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
    print(f"{RANKS} gloo ranks, {arguments.seconds:g} s a size, torch {torch.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, f"--store={Path(directory) / 'store'}"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
        ranks = [
            subprocess.Popen([*command, f"--rank={rank}", f"--seconds={arguments.seconds}"], env=environment)
            for rank in range(RANKS)
        ]
        sys.exit(max(abs(one.wait()) for one in ranks))


if __name__ == "__main__":
    main()
