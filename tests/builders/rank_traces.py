"""Traces of ranks that were read, and files of traces to read: the parts of each step are given."""

import dataclasses
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalescope.analysis.trace.job import JobTrace
from scalescope.results.traces.collectives import UNKNOWN_GROUP, Exchange, Group
from scalescope.results.traces.job_trace import COMPUTE_PARTS, SUM_PARTS, RankTrace
from scalescope.results.traces.operations import Operation
from tests.builders.traces import Event, event, moved, on_device

STEP_S = 0.1
STEPS = 4
H100 = "NVIDIA H100 80GB HBM3"
Step = Mapping[str, float]


def step(step_s: float = STEP_S, *, overlap_s: float = 0.0, **parts_s: float) -> Step:
    """A step of so long that has these parts, and computes for the rest."""
    compute_s = step_s - math.fsum(parts_s.values())
    parts = {**dict.fromkeys((*COMPUTE_PARTS, *SUM_PARTS), 0.0), **parts_s}
    parts |= {"compute_s": compute_s, "other_s": compute_s}
    sent_s = parts["exposed_s"] + overlap_s
    return {"time_s": step_s, "communication_s": sent_s, "overlap_s": overlap_s, **parts}


def exchange(time_s: float = 0.005, step: int = 0, **known: Any) -> Exchange:
    """An all-reduce that nothing hides, of an unknown group."""
    return Exchange(
        **{
            "kind": "all_reduce",
            "group": UNKNOWN_GROUP,
            "step": step,
            "time_s": time_s,
            "exposed_s": time_s,
            **known,
        }
    )


def operation(op: str = "aten::add", shapes: str | None = None, **known: Any) -> Operation:
    """10 calls per step that take 1 ms of the GPU together."""
    return Operation(
        **{
            "op": op,
            "kernel": "kernel",
            "shapes": shapes,
            "dtype": "bf16",
            "phase": "forward",
            "module": None,
            "line": None,
            "per_step": 10.0,
            "gpu_s": 1e-3,
            "host_s": 1e-4,
            "idle_s": 0.0,
            "flops": None,
            **known,
        }
    )


def rank_trace(rank: int | None = 0, *steps: Step, ranks: int | None = 1, **known: Any) -> RankTrace:
    """A rank on a GPU; without steps, four that only compute."""
    steps = steps or (step(),) * STEPS
    return RankTrace(
        **{
            "file": f"rank{rank}.json",
            "rank": rank,
            "world_size": ranks,
            "device": H100,
            "on_gpu": True,
            "step_names": tuple(str(number) for number in range(len(steps))),
            "steps": steps,
            "span": {},
            "facts": {"kernels_per_step": 100.0, "kernel_median_s": 5e-5},
            **known,
        }
    )


def job_of(*traces: RankTrace, **known: Any) -> JobTrace:
    return JobTrace(ranks=traces, **known)


def alone(*steps: Step, **known: Any) -> JobTrace:
    """One rank of a job of one."""
    return job_of(rank_trace(0, *steps, **known))


def meeting_job(
    late_s: Sequence[Sequence[float]],
    *,
    part: str = "compute_s",
    transfer_s: float = 0.01,
    ranks: int | None = None,
    groups: Sequence[Group] = (),
    **known: Any,
) -> JobTrace:
    """Ranks that compute for 80 ms, are late by so long in each step, and meet in one exchange: it ends for
    all when the data of the last to come has arrived. `part` is what makes them late."""
    traces = []
    for rank, of_rank in enumerate(late_s):
        steps, exchanges = [], []
        for number, own_s in enumerate(of_rank):
            last_s = max(of_other[number] for of_other in late_s)
            time_s = last_s - own_s + transfer_s
            others_s = {} if part == "compute_s" else {part: own_s}
            steps.append(step(0.08 + last_s + transfer_s, exposed_s=time_s, **others_s))
            exchanges.append(exchange(time_s, number, **known))
        traces.append(
            rank_trace(
                rank, *steps, ranks=ranks or len(late_s), exchanges=tuple(exchanges), groups=tuple(groups)
            )
        )
    return job_of(*traces)


def changed(job: JobTrace, rank: int, **known: Any) -> JobTrace:
    """The same job, of which one rank's trace holds something else."""
    traces = list(job.ranks)
    traces[rank] = dataclasses.replace(traces[rank], **known)
    return job_of(*traces)


# ---- Files, as the profiler writes them

SECRETS = ("a-user", "a-host", "/home")  # in every file; nothing of it may be printed or copied
KERNEL, NCCL = "ampere_bf16_s16816gemm_bf16_128x128", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def write_rank(path: Path, rank: int = 0, ranks: int = 2, *, compute_ms: float = 60.0) -> Path:
    """Two steps of 100 ms: the rank computes, then all ranks exchange until 95 ms after the step began."""
    events = [later for number in range(2) for later in moved(_step(number, ranks, compute_ms), number * 100)]
    trace = {
        "schemaVersion": 1,
        "traceName": "/home/a-user/traces/rank.json",
        "host_name": "a-host",
        "deviceProperties": [{"id": 0, "name": H100}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
        "traceEvents": events,
    }
    content = json.dumps(trace).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def _step(number: int, ranks: int, compute_ms: float) -> list[Event]:
    nccl = {
        "Collective name": "allreduce",
        "Group size": ranks,
        "In msg nelems": 1_000_000,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(range(ranks))),
    }
    shapes = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    first = 10 * number
    return [
        event("user_annotation", f"ProfilerStep#{number + 3}", (0, 100)),
        event("python_function", "/home/a-user/train.py(12): train_step", (0, 90)),
        event("cpu_op", "aten::mm", (0.5, 2), **shapes),
        *on_device("kernel", KERNEL, 1, (2, 2 + compute_ms), first, thread=7),
        *on_device("kernel", NCCL, 3, (2 + compute_ms, 95), first + 1, thread=20, **nccl),
    ]
