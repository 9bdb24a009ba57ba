"""What measuring collectives costs: a bare torch.distributed loop and ours, interleaved on two gloo ranks.

    python benchmarks/comm_overhead.py [--blocks 60]

Prints the ratio of times, ours over bare, for all-reduces of 1 KiB to 64 MiB, and the median of these ratios.
Both loops use the same buffer and take turns in blocks, in a random order that both ranks share. A ratio is
the median over pairs of neighbouring blocks, so that whatever else the machine does meets both.
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

from scalescope.worker.benchmarks.comm import _iterate
from scalescope.worker.collectives import all_reduce
from scalescope.worker.group import Group, join
from scalescope.worker.operation import Operation, Shape

RANKS = 2
SIZES = [1 << power for power in range(10, 27, 2)]
BLOCK_S = 0.02


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


def agreed_count(operation: Operation, group: Group, device: torch.device) -> int:
    """Iterations that fill a block, decided by rank 0."""
    first = statistics.median(_iterate(operation, 3, group, device))
    count = torch.tensor([min(max(int(BLOCK_S / first), 2), 200)])
    dist.broadcast(count, src=0)
    return int(count)


def measure(size: int, blocks: int, group: Group) -> float:
    """Time of an iteration, ours over bare, at one size."""
    device = torch.device("cpu")
    shape = Shape(
        rank=group.rank, ranks=RANKS, count=size // 4, dtype=torch.float32, device=device, in_place=True
    )
    operation = all_reduce.prepare(shape)
    buffer = buffer_of(operation).zero_()
    count = agreed_count(operation, group, device)
    loops = {
        "bare": lambda: bare_loop(buffer, count),
        "ours": lambda: _iterate(operation, count, group, device),
    }
    times: dict[str, list[float]] = {name: [] for name in loops}
    for block in range(blocks + 1):
        for name in random.sample(sorted(loops), k=2):
            found = statistics.median(loops[name]())
            if block:  # the first one warms up
                times[name].append(found)
    ratio = statistics.median(ours / bare for ours, bare in zip(times["ours"], times["bare"], strict=True))
    if group.rank == 0:
        shown = ", ".join(
            f"{name} {statistics.median(found) * 1e6:>9.1f} µs" for name, found in times.items()
        )
        print(f"{size:>10} bytes: {shown}, ratio {ratio:.4f}", flush=True)
    return ratio


def rank_main(rank: int, store: str, blocks: int) -> None:
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
    ratios = [measure(size, blocks, group) for size in SIZES]
    if rank == 0:
        print(f"median ratio over sizes: {statistics.median(ratios):.4f}", flush=True)
    group.leave()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        rank_main(arguments.rank, arguments.store, arguments.blocks)
        return
    print(f"{RANKS} gloo ranks, {arguments.blocks} blocks each, torch {torch.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, f"--store={Path(directory) / 'store'}"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
        ranks = [
            subprocess.Popen([*command, f"--rank={rank}", f"--blocks={arguments.blocks}"], env=environment)
            for rank in range(RANKS)
        ]
        sys.exit(max(abs(one.wait()) for one in ranks))


if __name__ == "__main__":
    main()
