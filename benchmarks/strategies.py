"""Every strategy against a training loop written by hand: the same model, settings, ranks and machine.

    python benchmarks/strategies.py --device cpu --ranks 2
    python benchmarks/strategies.py --device cuda --split-gpu 4 --strategies ddp,fsdp,zero1 --launches 8

Every launch of a strategy is one command of scalescope, or as many plain processes that run the loops of
this file (torch alone). Both sides take turns launch by launch, in random order. The ratio of step times is
ours over hand-written, with Welch's 95 % interval over launches. Every launch is a line of --results, so that
a benchmark that was stopped continues where it was. `pipeline` is missing: its stages depend on a balance
that scalescope finds, and a loop with the same stages would be a copy of it.
"""

import argparse
import dataclasses
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIDES = ("ours", "by hand")
STRATEGIES = ("single", "ddp", "scratch_ddp", "fsdp", "zero1")
LR = 0.01
BUCKET_MIB = 50.0
LEAST_WARMUP_STEPS = 11
LEAST_WARMUP_S = 1.0
LAUNCH_LIMIT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """What both sides train."""

    device: str
    ranks: int
    width: int
    layers: int
    classes: int
    batch_size: int
    window_s: float
    split_gpu: int | None = None


DEFAULTS = {
    "cpu": {"width": 512, "layers": 4, "classes": 256, "batch_size": 128, "window_s": 3.0},
    "cuda": {"width": 2048, "layers": 4, "classes": 2048, "batch_size": 512, "window_s": 3.0},
}
TINY = {"width": 32, "layers": 2, "classes": 8, "batch_size": 8, "window_s": 0.2}


# ---- loops by hand: torch alone ----


def model_of(job: Job, device: Any) -> Any:
    from torch import nn

    widths = [job.width] * (job.layers + 1) + [job.classes]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs, device=device), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def batches_of(job: Job, rank: int, device: Any) -> Iterator[Any]:
    import torch

    generator = torch.Generator().manual_seed(rank)
    ready = [
        (
            torch.randn(job.batch_size, job.width, generator=generator).to(device),
            torch.randint(job.classes, (job.batch_size,), generator=generator).to(device),
        )
        for _ in range(2)
    ]
    return itertools.cycle(ready)


def wrapped_in_ddp(model: Any, device: Any) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=BUCKET_MIB,
            broadcast_buffers=False,
            static_graph=True,
            gradient_as_bucket_view=True,
        )


def flat_gradients(model: Any) -> Callable[[], None]:
    """Gradients in flat buckets, sent from the hook of their last parameter; returns what waits for them."""
    import torch
    import torch.distributed as dist

    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)
    works: list[Any] = []
    bucket: list[Any] = []

    def close(members: list[Any]) -> None:
        flat = torch.zeros(sum(p.numel() for p in members), device=members[0].device)
        for parameter, piece in zip(members, flat.split([p.numel() for p in members]), strict=True):
            parameter.grad = piece.view_as(parameter)
        ready = 0

        def on_gradient(_: Any) -> None:
            nonlocal ready
            ready += 1
            if ready == len(members):
                ready = 0
                flat.div_(dist.get_world_size())
                works.append(dist.all_reduce(flat, async_op=True))

        for parameter in members:
            parameter.register_post_accumulate_grad_hook(on_gradient)

    for parameter in reversed(list(model.parameters())):
        if sum(p.numel() * p.element_size() for p in bucket) >= BUCKET_MIB * 2**20:
            close(bucket)
            bucket = []
        bucket.append(parameter)
    close(bucket)

    def wait() -> None:
        for work in works:
            work.wait()
        works.clear()

    return wait


def step_of(strategy: str, job: Job, rank: int, device: Any) -> Callable[[], None]:
    """One training step, as a user of torch would write it."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy

    torch.manual_seed(0)
    model = model_of(job, device)
    module, wait, keep = model, lambda: None, False
    if strategy in ("ddp", "zero1"):
        module, keep = wrapped_in_ddp(model, device), True
    elif strategy == "scratch_ddp":
        wait, keep = flat_gradients(model), True
    elif strategy == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for layer in model:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer: Any
    if strategy == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=LR)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    batches = batches_of(job, rank, device)

    def step() -> None:
        inputs, targets = next(batches)
        cross_entropy(module(inputs), targets).backward()
        wait()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not keep)

    return step


def be_rank(strategy: str, job: Job, rank: int, folder: Path) -> None:
    """One rank by hand: warm up, agree on a number of steps, time them."""
    import torch
    import torch.distributed as dist

    on_gpu = job.device == "cuda"
    shares = on_gpu and job.split_gpu is not None
    device = torch.device("cuda", 0 if shares else rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    grouped = strategy != "single"
    if grouped:
        store = dist.FileStore(str(folder / "store"), job.ranks)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=store,
            rank=rank,
            world_size=job.ranks,
            device_id=device if on_gpu else None,
        )
    step = step_of(strategy, job, rank, device)

    def largest(value: float) -> float:
        if not grouped:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return float(shared)

    def timed(count: int) -> float:
        synchronise = torch.cuda.synchronize if on_gpu else lambda: None
        synchronise()
        began = time.perf_counter()
        for _ in range(count):
            step()
        synchronise()
        return (time.perf_counter() - began) / count

    timed(LEAST_WARMUP_STEPS)
    step_s = largest(timed(3))
    if on_gpu:
        step_s = largest(timed(max(1, math.ceil(LEAST_WARMUP_S / step_s))))
    count = max(5, min(math.ceil(job.window_s / step_s), 10_000))
    result = {"step_s": timed(count), "steps": count}
    (folder / f"rank-{rank}.json").write_text(json.dumps(result))
    if grouped:
        dist.barrier()
        del step
        dist.destroy_process_group()


# ---- both sides, launched ----


def launch_by_hand(strategy: str, job: Job) -> dict[str, float]:
    """As many plain processes as there are ranks; a step takes as long as that of the slowest."""
    from scalescope.launch.local.emulation import SplitGpu
    from scalescope.launch.probing import LOOPBACK

    ranks = 1 if strategy == "single" else job.ranks
    split = SplitGpu(job.split_gpu) if job.split_gpu else None
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            described = json.dumps(dataclasses.asdict(dataclasses.replace(job, ranks=ranks)))
            command = [sys.executable, __file__, "--strategies", strategy, "--as-rank"]
            threads = str(max(1, (os.cpu_count() or 1) // job.ranks) if job.device == "cuda" else 1)
            usual = {**os.environ, **LOOPBACK, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": "1"}
            processes = []
            for rank in range(ranks):
                variables = {} if split is None else split.environment_of(rank)
                processes.append(
                    subprocess.Popen(
                        [*command, str(rank), "--job", described, "--folder", name],
                        env={**usual, **variables},
                    )
                )
            try:
                codes = [process.wait(timeout=LAUNCH_LIMIT_S) for process in processes]
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
            if any(codes):
                raise SystemExit(f"{strategy} by hand: ranks exited with {codes}")
            answers = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    finally:
        if split is not None:
            split.close()
    return {"step_s": max(answer["step_s"] for answer in answers), "steps": answers[0]["steps"]}


def launch_ours(strategy: str, job: Job) -> dict[str, float]:
    """One command of scalescope with one launch."""
    ranks = 1 if strategy == "single" else job.ranks
    settings = {
        "strategy": strategy,
        "workload": "mlp",
        "device": job.device,
        "world-size": ranks,
        "input-dim": job.width,
        "hidden-dim": job.width,
        "num-layers": job.layers,
        "output-dim": job.classes,
        "batch-size": job.batch_size,
        "window": f"{job.window_s}s",
        "lr": LR,
        "repeats": 1,
    }
    if strategy in ("ddp", "zero1", "scratch_ddp"):
        settings["bucket-cap-mb"] = BUCKET_MIB
    if job.split_gpu is not None:
        settings["split-gpu"] = job.split_gpu
    if job.device == "cpu":
        settings |= {"threads-per-rank": 1, "pin-cores": "no"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        flags = [f"--{flag}={value}" for flag, value in settings.items()]
        command = [sys.executable, "-m", "scalescope", "train", *flags, "--no-repeat-disturbed"]
        command.append(f"--output-dir={folder}")
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LAUNCH_LIMIT_S, check=False)
        lines = (folder / "trials.jsonl").read_text().splitlines() if folder.exists() else []
        results = [result for line in lines if (result := json.loads(line))["status"] == "ok"]
        if not results:
            raise SystemExit(f"{strategy} with scalescope: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
        times = [record["samples"]["step_time_s"] for record in results[-1]["ranks"]]
    return {"step_s": max(math.fsum(rank) for rank in times) / len(times[0]), "steps": len(times[0])}


def measure(job: Job, strategies: list[str], launches: int, results: Path) -> list[dict[str, Any]]:
    """All launches that the file does not have yet, in random order."""
    described = dataclasses.asdict(job)
    lines = results.read_text().splitlines() if results.exists() else []
    done = [entry for line in lines if (entry := json.loads(line))["job"] == described]
    finished = {(entry["launch"], entry["strategy"], entry["side"]) for entry in done}
    for launch in range(launches):
        order = [(strategy, side) for strategy in strategies for side in SIDES]
        random.Random(launch).shuffle(order)
        for strategy, side in order:
            if (launch, strategy, side) in finished:
                continue
            run = launch_ours if side == "ours" else launch_by_hand
            entry = {"launch": launch, "strategy": strategy, "side": side, "job": described}
            entry |= run(strategy, job)
            with results.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            done.append(entry)
            print(f"{launch} {strategy:12} {side:8} {entry['step_s'] * 1e3:9.3f} ms", file=sys.stderr)
    return done


def table(done: list[dict[str, Any]], strategies: list[str], launches: int) -> Iterator[str]:
    """A row for each strategy."""
    from scalescope.analysis.statistics import ratio_of_logs

    yield f"{'strategy':12} {'launches':>8} {'by hand':>11} {'ours':>11}   ours / by hand [95 %]"
    for strategy in strategies:
        times = {
            side: [
                entry["step_s"]
                for entry in done
                if (entry["strategy"], entry["side"]) == (strategy, side) and entry["launch"] < launches
            ]
            for side in SIDES
        }
        if not all(times.values()):
            continue
        logs = {side: [math.log(value) for value in values] for side, values in times.items()}
        means = [f"{1e3 * math.exp(math.fsum(logs[s]) / len(logs[s])):8.3f} ms" for s in reversed(SIDES)]
        ratio = ratio_of_logs(logs["ours"], logs["by hand"])
        interval = "" if ratio.low is None else f" [{ratio.low:.4f}, {ratio.high:.4f}]"
        yield f"{strategy:12} {len(times['ours']):8} {' '.join(means)}   {ratio.value:.4f}{interval}"


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=tuple(DEFAULTS), default="cpu")
    parser.add_argument("--ranks", type=int, help="default 2; with --split-gpu as many as there are shares")
    parser.add_argument("--split-gpu", type=int, metavar="N", help="ranks on shares of one GPU (CUDA MPS)")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--launches", type=int, default=8, help="of each strategy and side")
    parser.add_argument("--width", type=int)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--window-s", type=float)
    parser.add_argument("--tiny", action="store_true", help="try the script: these times mean nothing")
    parser.add_argument("--results", type=Path, default=Path("strategies.jsonl"))
    parser.add_argument("--as-rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = arguments_of()
    strategies = arguments.strategies.split(",")
    if unknown := set(strategies) - set(STRATEGIES):
        raise SystemExit(
            f"unknown strategies: {', '.join(sorted(unknown))}; there are {', '.join(STRATEGIES)}"
        )
    if arguments.as_rank is not None:
        be_rank(strategies[0], Job(**json.loads(arguments.job)), arguments.as_rank, arguments.folder)
        return
    sizes: dict[str, Any] = dict(TINY if arguments.tiny else DEFAULTS[arguments.device])
    asked = {name: getattr(arguments, name) for name in ("width", "layers", "batch_size", "window_s")}
    sizes |= {name: value for name, value in asked.items() if value is not None}
    ranks = arguments.ranks or arguments.split_gpu or 2
    job = Job(device=arguments.device, ranks=ranks, split_gpu=arguments.split_gpu, **sizes)
    done = measure(job, strategies, arguments.launches, arguments.results)
    print(json.dumps(dataclasses.asdict(job)))
    print("\n".join(table(done, strategies, arguments.launches)))


if __name__ == "__main__":
    main()
