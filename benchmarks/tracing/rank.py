"""One rank of a recorded job, without scalescope: times plain steps, records a few, and times the job without
its cause.

    python rank.py [--spare]

Its orders are a line of JSON on stdin: the case, the rank, the file where ranks meet, the folder, variables.
It writes traces/rank{RANK}.pt.trace.json.gz and times{RANK}.json into the folder, as a training script with
torch.profiler would: a schedule, `profiler.step()` after every step, one trace per rank. A spare process
loads torch and waits for its orders.
"""

import argparse
import datetime
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tracing.causes import Place, job_of

_WARMUP = {"cpu": 4, "cuda": 12}
_LIMIT = datetime.timedelta(seconds=90)


class Training:
    """A job on this rank: makes one step after another."""

    def __init__(self, case: dict[str, Any], arguments: dict[str, Any], place: Place) -> None:
        self.place = place
        job = job_of(case["job"], arguments, place)
        self.model, self.optimizer, self.loss, self.own_step = job.model, job.optimizer, job.loss, job.step
        if place.ranks > 1:
            options = {} if case["bucket_mb"] is None else {"bucket_cap_mb": case["bucket_mb"]}
            self.model = DistributedDataParallel(self.model, **options)
        self.batches = _batches(job.data, case["batch"])

    def step(self) -> None:
        batch = [part.to(self.place.device) for part in next(self.batches)]
        if self.own_step is not None:
            self.own_step(self.model, batch, self.optimizer)
            return
        assert self.loss is not None
        loss = self.loss(self.model(batch[0]), batch[1])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def timed(self, steps: int) -> float:
        """Seconds per step of plain steps, after a warm-up."""
        for _ in range(_WARMUP[self.place.device.type]):
            self.step()
        self.meet()
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.meet()
        return (time.perf_counter() - began) / steps

    def recorded(self, steps: int, path: Path, *, stacks: bool) -> None:
        """Record as many steps; the trace is written when they are over."""
        activities = [ProfilerActivity.CPU]
        if self.place.on_gpu:
            activities.append(ProfilerActivity.CUDA)
        with profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=2, active=steps, repeat=1),
            on_trace_ready=lambda recorder: recorder.export_chrome_trace(str(path)),
            record_shapes=True,
            with_stack=stacks,
        ) as recorder:
            for _ in range(2 + steps):
                self.step()
                recorder.step()
        self.meet()

    def meet(self) -> None:
        """Wait for the GPU and for all ranks."""
        if self.place.on_gpu:
            torch.cuda.synchronize()
        if self.place.ranks > 1:
            dist.barrier(device_ids=[0] if self.place.on_gpu else None)


def _batches(data: Any, batch: int) -> Iterator[Any]:
    """Batches without end: of a loader where the data is a data set."""
    source = DataLoader(data, batch_size=batch) if isinstance(data, Dataset) else data
    while True:
        yield from source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--spare", action="store_true", help="load everything before the orders come")
    if parser.parse_args().spare:
        importlib.import_module("torch._dynamo")  # which DDP loads, in seconds
    line = sys.stdin.readline()
    if not line:
        return  # not needed
    orders = json.loads(line)
    os.environ.update(orders["environment"])
    case, folder = orders["case"], Path(orders["folder"])
    device = torch.device("cuda" if case["device"] == "cuda" else "cpu")
    place = Place(rank=orders["rank"], ranks=case["ranks"], device=device)
    if place.on_gpu:
        torch.cuda.set_device(0)
    else:
        torch.set_num_threads(1)
    if place.ranks > 1:
        dist.init_process_group(
            "nccl" if place.on_gpu else "gloo",
            init_method=f"file://{orders['store']}",
            rank=place.rank,
            world_size=place.ranks,
            timeout=_LIMIT,
        )
    times_s = _recorded(case, place, folder)
    (folder / f"times{place.rank}.json").write_text(json.dumps(times_s), encoding="utf-8")
    if place.ranks > 1:
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # nothing of the job is needed any more


def _recorded(case: dict[str, Any], place: Place, folder: Path) -> dict[str, float]:
    """Seconds per step of the job, and of the job without its cause."""
    training = Training(case, case["arguments"], place)
    times_s = {"step_s": training.timed(case["steps"])}
    path = folder / "traces" / f"rank{place.rank}.pt.trace.json.gz"
    training.recorded(case["steps"], path, stacks=case["stacks"])
    del training
    _collect(place)
    if case["without"] is not None:
        training = Training(case, {**case["arguments"], **case["without"]}, place)
        times_s["without_s"] = training.timed(case["steps"])
        del training
        _collect(place)
    return times_s


def _collect(place: Place) -> None:
    """Let a job go: DDP must be gone before the process group."""
    gc.collect()
    if place.on_gpu:
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
