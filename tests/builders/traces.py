"""Chrome traces made up by hand, in milliseconds, and runs that hold them: every number is known."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalescope.experiment.explanations import arrivals_of
from scalescope.experiment.trial import Trial
from scalescope.results.result import RankRecord, Result
from scalescope.results.run import Run
from scalescope.results.traces.events import BACKWARD, CLEAR, FORWARD, INPUT, OPTIMIZER, STEP, trace_name
from scalescope.results.traces.summary import TraceSummary
from tests.builders.results import make_result

Event = dict[str, Any]
Moment = tuple[float, float]
STEP_MS = 100.0
TRAINING, GLOO, AUTOGRAD = 1, 2, 3  # threads
COMPUTE_STREAM, NCCL_STREAM = 7, 20
BACKWARD_OPERATION = "autograd::engine::evaluate_function: MmBackward0"


def event(category: str, name: str, when: Moment, *, thread: int = TRAINING, **arguments: Any) -> Event:
    """gloo's events are on a thread of its own."""
    start, end = when
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "tid": GLOO if name.startswith("gloo:") else thread,
        "ts": start * 1e3,
        "dur": (end - start) * 1e3,
        "args": arguments,
    }


def moved(events: Sequence[Event], by_ms: float) -> list[Event]:
    """The same events, later by some milliseconds."""
    return [{**moved_event, "ts": moved_event["ts"] + by_ms * 1e3} for moved_event in events]


def sized(elements: int) -> dict[str, Any]:
    """The arguments in which gloo's events hold their size."""
    return {"Input Dims": [[elements]], "Input type": ["float"]}


def cpu_step(sent: Sequence[Moment] = ((50, 90),)) -> list[Event]:
    """100 ms: 10 of input, 20 of forward, 40 of backward from 30 on, 5 of optimizer, 5 of nothing.

    What autograd wraps around backward's operation takes 2 ms more, and computes nothing in them.
    """
    return [
        event("user_annotation", INPUT, (0, 10)),
        event("user_annotation", FORWARD, (10, 30)),
        event("cpu_op", "aten::addmm", (10, 30)),
        event("user_annotation", BACKWARD, (30, 90)),
        event("cpu_op", BACKWARD_OPERATION, (30, 72)),
        event("cpu_op", "aten::mm", (30, 70)),
        event("cpu_op", "c10d::allreduce_", (75, 76)),
        *(event("user_annotation", "gloo:all_reduce", when, **sized(1000)) for when in sent),
        event("user_annotation", OPTIMIZER, (90, 95)),
        event("cpu_op", "aten::add_", (90, 95)),
        event("user_annotation", CLEAR, (95, 100)),
    ]


def on_device(
    category: str,
    name: str,
    launched: float,
    when: Moment,
    number: int,
    *,
    launcher: int = TRAINING,
    **arguments: Any,
) -> list[Event]:
    """What a GPU does, and the call with which a thread of the host asked for it."""
    call = event(
        "cuda_runtime", "cudaLaunchKernel", (launched, launched + 0.1), thread=launcher, correlation=number
    )
    return [
        call,
        event(category, name, when, correlation=number, **arguments),
    ]


def cuda_step(number: int) -> list[Event]:
    """The host is done after 30 ms; the device begins with a copy at 4 and ends with the optimizer at 95."""
    first = 10 * number
    nccl = {"In msg nelems": 1000, "dtype": "BFloat16"}
    return moved(
        [
            event("user_annotation", INPUT, (0, 2)),
            event("user_annotation", FORWARD, (2, 10)),
            event("user_annotation", BACKWARD, (10, 20)),
            event("cpu_op", BACKWARD_OPERATION, (10, 20)),
            event("user_annotation", "nccl:all_reduce", (15, 16)),
            event("user_annotation", OPTIMIZER, (20, 25)),
            event("user_annotation", CLEAR, (25, 30)),
            *on_device("gpu_memcpy", "Memcpy HtoD", 2, (4, 9), first),
            *on_device("kernel", "forward_gemm", 5, (12, 32), first + 1),
            *on_device("kernel", "backward_gemm", 12, (32, 62), first + 2),
            *on_device("kernel", "ncclDevKernel_AllReduce_Sum_bf16", 15, (50, 80), first + 3, **nccl),
            *on_device("kernel", "optimizer", 22, (85, 95), first + 4),
        ],
        number * STEP_MS,
    )


def steps_of(events: Sequence[Event], count: int = 3) -> list[Event]:
    """The same step several times; the first is the one that is not read."""
    return [later for number in range(count) for later in moved(events, number * STEP_MS)]


ALL_REDUCE: dict[str, Any] = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 4,
    "dtype": "BFloat16",
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1, 2, 3]",
}
# A step of a job of others on a GPU, as torch's profiler records it with stacks and shapes: its last kernel
# ends after 100 ms. The profiler wrote where each file lies; of the forward pass one line is the user's.
OTHERS_STEP = [
    event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", (0, 4)),
    event("python_function", "/home/somebody/train.py(20): main", (0, 100)),
    event("python_function", "nn.Module: Net_0", (4, 10)),
    event("python_function", "/home/somebody/model.py(12): forward", (4, 10)),
    event("python_function", "nn.Module: Linear_3", (5, 9)),
    event("python_function", "torch/nn/modules/linear.py(124): forward", (5, 9)),
    event("python_function", "<built-in function linear>", (5, 9)),
    event(
        "cpu_op", "aten::addmm", (5, 8),
        **{
            "Input Dims": [[16], [4, 8], [8, 16], [], []],
            "Input type": ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"],
            "Sequence number": 7,
        },
    ),
    event(
        "cpu_op", BACKWARD_OPERATION, (12, 20), thread=AUTOGRAD,
        **{"Sequence number": 7, "Fwd thread id": 1},
    ),
    event(
        "cpu_op", "aten::mm", (13, 15), thread=AUTOGRAD,
        **{"Input Dims": [[4, 16], [16, 8]], "Input type": ["c10::BFloat16"] * 2},
    ),
    event("user_annotation", "Optimizer.step#AdamW.step", (20, 30)),
    *on_device("kernel", "bf16_gemm", 6, (10, 30), 1, thread=COMPUTE_STREAM),
    *on_device("kernel", "bf16_gemm", 14, (30, 60), 2, thread=COMPUTE_STREAM, launcher=AUTOGRAD),
    *on_device(
        "kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 16, (40, 80), 3,
        thread=NCCL_STREAM, launcher=AUTOGRAD, **ALL_REDUCE,
    ),
    *on_device("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 21, (85, 90), 4, bytes=4000),
    *on_device("kernel", "multi_tensor_apply_kernel", 22, (90, 100), 5, thread=COMPUTE_STREAM),
]  # fmt: skip


def marked(events: Sequence[Event], steps: int = 2, first: int = 10) -> list[Event]:
    """The same in every step of 100 ms of a job of others, which the profiler's marks separate; in each a
    pair of call and kernel has a number of its own."""
    recorded = []
    for number in range(steps):
        mark = event("user_annotation", f"{STEP}{first + number}", (0, STEP_MS))
        for each in moved([mark, *events], number * STEP_MS):
            arguments = dict(each["args"])
            if "correlation" in arguments:
                arguments["correlation"] += 1000 * number
            recorded.append({**each, "args": arguments})
    return recorded


def write_trace(path: Path, events: Sequence[Event], **facts: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps({**facts, "traceEvents": list(events)}).encode()))
    return path


def recorded(trial: Trial) -> Trial:
    """The trial that records the steps of a timed one."""
    return trial.replace(benchmark="profile", profile_steps=2, profile_ranks="all", profile_with="torch")


def profile_result(
    trial: Trial,
    traced: Sequence[int],
    ddp: tuple[float, float] | None = None,
    counters: Mapping[str, float | int | str | None] | None = None,
    bucket_bytes: Sequence[float] = (),
) -> Result:
    """A recorded launch; `ddp` holds DDP's counters of communication and overlap."""
    ddp_samples = {} if ddp is None else {"ddp_communication_s": [ddp[0]], "ddp_overlap_s": [ddp[1]]}
    names = {rank: {"trace": trace_name(trial.trial_id, 0, rank)} for rank in traced}
    return Result(
        trial_id=trial.trial_id,
        launch=0,
        order=1,
        status="ok",
        settings=dict(trial.settings),
        started_at="2026-01-15T10:30:00+00:00",
        duration_s=1.0,
        environment_id="made-up",
        ranks=[
            RankRecord(
                rank=rank,
                host="here",
                device="cpu",
                placement=f"[Rank {rank}]",
                samples={
                    "recorded_step_time_s": [9.0, 0.11, 0.13],
                    "bucket_bytes": list(bucket_bytes),
                    **ddp_samples,
                },
                counters={**names.get(rank, {}), **(counters or {})},
            )
            for rank in range(trial.world_size)
        ],
    )


def traced_run(
    path: Path,
    trial: Trial,
    traces: Mapping[int, Sequence[Event] | None],
    *timed: Result,
    **result_options: Any,
) -> Run:
    """A run with the traces of some ranks; None is one that lies elsewhere."""
    profiled = recorded(trial)
    for rank, events in traces.items():
        if events is not None:
            write_trace(path / trace_name(profiled.trial_id, 0, rank), events)
    result = profile_result(profiled, tuple(traces), **result_options)
    return Run(path=path, environment={}, results=(*timed, result), warnings=())


# ---- Recorded launches made up from what every rank does in a step: every number in them is known

STEPS = 3


def recorded_result(
    trial: Trial,
    compute_s: Sequence[float],
    transfer_s: float,
    *,
    hidden_s: float = 0.0,
    idle_host_s: float = 0.0,
    launch: int = 0,
) -> Result:
    """Ranks that compute for so long and then exchange, once in a step; the exchange may begin before compute
    ends, so that compute hides the first part of it."""
    last = max(compute_s)
    summaries = []
    for mine in compute_s:
        duration = last - mine + transfer_s + hidden_s
        exposed = duration - hidden_s
        summaries.append(
            TraceSummary(
                parts={
                    "step_s": [mine + exposed + idle_host_s] * STEPS,
                    "compute_s": [mine] * STEPS,
                    "exposed_s": [exposed] * STEPS,
                    "copy_s": [0.0] * STEPS,
                    "idle_host_s": [idle_host_s] * STEPS,
                    "idle_data_s": [0.0] * STEPS,
                    "idle_queued_s": [0.0] * STEPS,
                },
                collective_s=[[duration]] * STEPS if len(compute_s) > 1 else [[]] * STEPS,
                collective_exposed_s=[[exposed]] * STEPS if len(compute_s) > 1 else [[]] * STEPS,
            )
        )
    result = make_result(arrivals_of(trial), [[last + transfer_s] * STEPS] * len(compute_s), launch=launch)
    records = [
        RankRecord(
            rank=rank,
            host="here",
            device="cpu",
            placement=f"[Rank {rank}]",
            samples=summary.samples(),
        )
        for rank, summary in enumerate(summaries)
    ]
    result.ranks[:] = records
    return result
