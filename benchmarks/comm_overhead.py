"""The overhead of measuring collectives: a bare torch.distributed loop and ours on two gloo ranks.

    python benchmarks/comm_overhead.py [--launches 8] [--seconds 1]

Prints for all-reduces of 1 KiB to 64 MiB the ratio of mean times, ours over bare, with its 95 % interval. A
launch is new processes; its figure is the mean over iterations on the slowest rank, and launches are the unit
of the interval. Medians are not compared: small exchanges take a fraction of a millisecond or a tick of the
scheduler, and a median jumps from one to the other. In a launch both loops use the same buffer and take
turns every five iterations, in a random order that both ranks share, so that other load on the machine
affects both, and a launch gives a ratio. Every rank is pinned to its own core, which gloo's thread shares.
"""

import argparse
import json
import math
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

from scalescope.analysis.modes import two_modes
from scalescope.analysis.statistics import Estimate, mean_of_logs
from scalescope.catalog.benchmarks.comm import Comm
from scalescope.catalog.setting import settings_of
from scalescope.cores import own_cores, share_of
from scalescope.worker.benchmarks.comm import CommRun, _iterate
from scalescope.worker.collectives import Operation, Shape, prepare
from scalescope.worker.process.group import Group, join
from scalescope.worker.process.position import Position
from scalescope.worker.process.rank import pin_to
from scalescope.worker.training.measurements import Measurements

RANKS = 2
SIZES = [1 << power for power in range(10, 27, 2)]
BLOCK = 5  # iterations before the other loop runs
BARE, OURS = "bare", "ours"
Means = dict[str, float]


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
    """Pairs of blocks that fit into the time by the mean of a few iterations, decided by rank 0."""
    first = statistics.fmean(_iterate(run, operation, 20))
    count = torch.tensor([min(max(int(seconds / (2 * BLOCK * first)), 4), 2000)])
    dist.broadcast(count, src=0)
    return int(count)


def measure(size: int, seconds: float, group: Group) -> Means:
    """Mean time of an iteration on the slowest rank at one size, and whether ours has two modes."""
    device = torch.device("cpu")
    shape = Shape(
        rank=group.rank, ranks=RANKS, count=size // 4, dtype=torch.float32, device=device, in_place=True
    )
    operation, run = prepare("all_reduce", shape), comm_run(group, device)
    buffer = buffer_of(operation).zero_()
    loops = {
        BARE: lambda: bare_loop(buffer, BLOCK),
        OURS: lambda: _iterate(run, operation, BLOCK),
    }
    times: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(agreed_blocks(run, operation, seconds)):
        for name in random.sample(sorted(loops), k=2):
            times[name] += loops[name]()
    means = {name: group.largest(statistics.fmean(values), device) for name, values in times.items()}
    return {**means, "modes": 2.0 if two_modes(times[OURS]) else 1.0, "count": float(len(times[OURS]))}


def rank_main(rank: int, store: str, seconds: float, seed: int, output: Path) -> None:
    """One rank of a launch; rank 0 writes the means of every size."""
    pin_to(share_of(own_cores(), 1, RANKS, rank))
    torch.set_num_threads(1)
    random.seed(seed)  # the same order on all ranks
    group = join(
        dist.FileStore(store, RANKS),
        backend="gloo",
        rank=rank,
        world_size=RANKS,
        device=torch.device("cpu"),
        timeout_s=600,
    )
    means = {size: measure(size, seconds, group) for size in SIZES}
    if rank == 0:
        output.write_text(json.dumps(means))
    group.leave()


def launch(number: int, seconds: float) -> dict[int, Means]:
    """The means of every size in new processes."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "means.json"
        command = [sys.executable, __file__, f"--store={Path(directory) / 'store'}", f"--output={output}"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
        ranks = [
            subprocess.Popen(
                [*command, f"--rank={rank}", f"--seconds={seconds}", f"--seed={number}"], env=environment
            )
            for rank in range(RANKS)
        ]
        if code := max(abs(rank.wait()) for rank in ranks):
            sys.exit(code)
        return {int(size): means for size, means in json.loads(output.read_text()).items()}


def ratio_of(launches: list[Means]) -> Estimate:
    """Ours over bare; both are of the same launch, so each launch gives a ratio."""
    return mean_of_logs([math.log(means[OURS] / means[BARE]) for means in launches])


def show(launches: list[dict[int, Means]]) -> None:
    """A line for each size: no number over all sizes hides one that is off."""
    print("     bytes    bare µs    ours µs    ratio    95 % interval   launches with two modes")
    for size in SIZES:
        members = [by_size[size] for by_size in launches]
        ratio = ratio_of(members)
        interval = f"{ratio.low:.3f} to {ratio.high:.3f}" if ratio.has_interval else "unknown"
        bare, ours = (statistics.fmean(means[name] for means in members) * 1e6 for name in (BARE, OURS))
        modes = sum(means["modes"] == 2.0 for means in members)
        line = f"{size:>10} {bare:>10.1f} {ours:>10.1f} {ratio.value:>8.3f}   {interval:>14}"
        print(f"{line}   {modes} of {len(members)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each size in a launch")
    for hidden, kind in (("rank", int), ("seed", int), ("store", str), ("output", Path)):
        parser.add_argument(f"--{hidden}", type=kind, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        rank_main(arguments.rank, arguments.store, arguments.seconds, arguments.seed, arguments.output)
        return
    print(
        f"{RANKS} gloo ranks, {arguments.launches} launches, {arguments.seconds:g} s per size and launch, "
        f"torch {torch.__version__}",
        flush=True,
    )
    show([launch(number, arguments.seconds) for number in range(arguments.launches)])


if __name__ == "__main__":
    main()
