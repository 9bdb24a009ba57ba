"""A rank's trace as facts: steps whose parts add up, what stands out, and damaged or hostile files."""

import json
import math
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scalescope.interpreter import python_module
from scalescope.results.traces.collectives import Group
from scalescope.results.traces.job_trace import SUM_PARTS, RankTrace, read_trace
from tests.builders.traces import (
    ALL_REDUCE,
    COMPUTE_STREAM,
    NCCL_STREAM,
    OTHERS_STEP,
    Event,
    Moment,
    cpu_step,
    event,
    marked,
    on_device,
    steps_of,
    write_trace,
)

OTHERS = marked(OTHERS_STEP)
JOB = {
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 4},
    "deviceProperties": [{"id": 0, "name": "a GPU", "totalGlobalMem": 1}],
}


def read(path: Path, *events: Event, **facts: Any) -> RankTrace:
    return read_trace(write_trace(path / "rank3.json.gz", events, **facts))


def in_ms(step: Mapping[str, float]) -> dict[str, float]:
    return {name.removesuffix("_s"): time_s * 1e3 for name, time_s in step.items() if time_s}


def sums(trace: RankTrace) -> list[float]:
    return [math.fsum(step[part] for part in SUM_PARTS) for step in trace.steps]


def times(trace: RankTrace) -> list[float]:
    return [step["time_s"] for step in trace.steps]


def kernel(name: str, when: Moment, stream: int, **arguments: Any) -> Event:
    """One whose launch is not in the recording."""
    return event("kernel", name, when, thread=stream, **arguments)


# steps


def test_a_step_of_a_job_of_others_is_taken_apart(tmp_path: Path) -> None:
    trace = read(tmp_path, *OTHERS)
    assert trace.on_gpu
    assert trace.step_names == ("10", "11")
    for step in trace.steps:
        assert in_ms(step) == pytest.approx(
            {
                "time": 100.0,
                "compute": 60.0,
                "forward": 20.0,
                "backward": 30.0,
                "optimizer": 10.0,
                "communication": 40.0,
                "overlap": 20.0,
                "exposed": 20.0,
                "copies": 5.0,
                "idle_input": 4.0,
                "idle_host": 2.02,
                "idle_queued": 3.98 + 5.0,
            }
        )
    assert sums(trace) == pytest.approx([0.1, 0.1], abs=1e-12)


def test_a_step_on_the_cpu_is_taken_apart(tmp_path: Path) -> None:
    """Ours, whose first one includes the start of the profiler."""
    trace = read(tmp_path, *steps_of(cpu_step()))
    assert not trace.on_gpu
    assert trace.step_names == ("1", "2")
    for step in trace.steps:
        assert in_ms(step) == pytest.approx(
            {
                "time": 100.0, "compute": 65.0, "other": 65.0, "communication": 40.0, "overlap": 20.0,
                "exposed": 20.0, "idle_input": 10.0, "idle_host": 5.0,
            }
        )  # fmt: skip
    assert sums(trace) == pytest.approx([0.1, 0.1], abs=1e-12)
    assert (trace.chains, [exchange.size_bytes for exchange in trace.exchanges]) == ((), [4000, 4000])


def test_the_whole_recording_has_its_own_sums(tmp_path: Path) -> None:
    """From the first kernel of the device on: without what comes before it."""
    assert in_ms(read(tmp_path, *OTHERS).span) == pytest.approx(
        {
            "time": 190.0, "compute": 120.0, "communication": 80.0, "overlap": 40.0, "exposed": 40.0,
            "copies": 10.0, "idle": 20.0,
        }
    )  # fmt: skip


def test_without_marks_the_whole_recording_is_one_step(tmp_path: Path) -> None:
    trace = read(tmp_path, *(each for each in OTHERS if not each["name"].startswith("ProfilerStep#")))
    assert (trace.step_names, len(trace.steps), len(trace.notes)) == ((), 1, 1)
    assert times(trace) == pytest.approx([0.190])
    assert sums(trace) == pytest.approx(times(trace))
    assert {exchange.step for exchange in trace.exchanges} == {0}


@pytest.mark.parametrize(
    ("stream", "when", "compute_ms"),
    [(COMPUTE_STREAM, (1, 5), 60.0), (99, (1, 5), 60.0), (NCCL_STREAM, (20, 35), 35.0)],
    ids=["of the first launches", "without launches", "of later launches"],
)
def test_kernels_launched_before_the_recording_are_not_part_of_the_first_step(
    tmp_path: Path, stream: int, when: Moment, compute_ms: float
) -> None:
    """The first step begins when they end; they run before everything that was launched on their stream."""
    trace = read(tmp_path, *OTHERS, kernel("before", when, stream))
    assert times(trace) == pytest.approx([0.100 - when[1] / 1e3, 0.100])
    assert [step["compute_s"] * 1e3 for step in trace.steps] == pytest.approx([compute_ms, 60.0])


def test_kernels_whose_launch_is_not_recorded_count_where_they_run(tmp_path: Path) -> None:
    """A stream of its own, of which the recording has no launch, long after the first ones of others."""
    trace = read(tmp_path, *OTHERS, kernel("unlaunched", (182, 184), 99))
    assert times(trace) == pytest.approx([0.100, 0.100])
    assert [step["compute_s"] for step in trace.steps] == pytest.approx([0.060, 0.062])


# facts


def test_rank_device_and_groups_are_those_of_the_job_s_facts(tmp_path: Path) -> None:
    trace = read(tmp_path, *OTHERS, **JOB)
    assert (trace.file, trace.rank, trace.world_size, trace.device) == ("rank3.json.gz", 3, 4, "a GPU")
    assert trace.groups == (Group(name="0", description="default_pg", size=4, ranks=(0, 1, 2, 3)),)
    unnamed = read(tmp_path, *OTHERS)
    assert (unnamed.rank, unnamed.world_size, unnamed.device) == (None, None, None)


@pytest.mark.parametrize(
    "facts",
    [
        {"distributedInfo": {"rank": -1, "world_size": 1e300}, "deviceProperties": [{"name": 3}]},
        {"distributedInfo": {"rank": "3", "world_size": 10**400}, "deviceProperties": {"name": "a GPU"}},
        {"distributedInfo": [3, 4], "deviceProperties": []},
        {"distributedInfo": {"pg_config": {"pg_name": "0"}}, "deviceProperties": [None]},
    ],
)
def test_facts_of_other_types_are_unknown(tmp_path: Path, facts: Mapping[str, Any]) -> None:
    trace = read(tmp_path, *OTHERS, **facts)
    assert (trace.rank, trace.world_size, trace.device) == (None, None, None)


def test_facts_are_counted_per_step(tmp_path: Path) -> None:
    facts = read(tmp_path, *OTHERS).facts
    assert facts["kernels_per_step"] == 3
    assert facts["kernel_median_s"] == pytest.approx(0.020)
    assert facts["pageable_copies_per_step"] == 1
    assert facts["host_calls_per_step"] == 5
    assert facts["launch_lead_s"] == pytest.approx(0.016)  # of 4, 16 and 68 ms the median
    assert facts["recomputed_s"] == 0.0


def test_what_recording_costs_depends_on_what_was_recorded(tmp_path: Path) -> None:
    """Three operations and five calls at 2 µs, six functions at 0.5 µs."""
    assert read(tmp_path, *OTHERS).facts["recording_s"] == pytest.approx(8 * 2e-6 + 6 * 0.5e-6)
    plain = [each for each in OTHERS if each["cat"] != "python_function"]
    assert read(tmp_path, *plain).facts["recording_s"] == pytest.approx(8 * 2e-6)


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("python_function", "torch/serialization.py(850): save", "saving a checkpoint"),
        ("python_function", "safetensors/torch.py(250): save_file", "saving a checkpoint"),
        ("python_function", "<built-in function collect>", "garbage collection"),
        ("user_annotation", "validation", "evaluation"),
        ("user_annotation", "dynamo_timed", "compilation"),
    ],
)
def test_what_stops_the_host_in_one_step_is_named_with_its_time(
    tmp_path: Path, category: str, name: str, kind: str
) -> None:
    """30 ms of the second step, in which the same name lies within itself; 5 ms more are after its end."""
    found = read(
        tmp_path, *OTHERS, *(event(category, name, when) for when in ((150, 180), (155, 175), (195, 205)))
    )
    assert [(stop.step, stop.name) for stop in found.stops] == [(1, kind)]
    assert found.stops[0].time_s == pytest.approx(0.035)


def test_a_stop_across_two_steps_counts_in_both(tmp_path: Path) -> None:
    trace = read(tmp_path, *OTHERS, event("cpu_op", "torch.save", (90, 120)))
    assert [stop.step for stop in trace.stops] == [0, 1]
    assert [stop.time_s for stop in trace.stops] == pytest.approx([0.010, 0.020])
    assert read(tmp_path, *OTHERS).stops == ()


# between processes


def test_what_one_process_writes_another_reads_back(tmp_path: Path) -> None:
    loops = [event("python_function", "moe.py(3): experts", (5, 9))]
    for number in range(5):
        shapes = {"Input Dims": [[4, 4], [4, 4]]}
        loops.append(event("cpu_op", "aten::mm", (6 + number * 0.1, 6.05 + number * 0.1), **shapes))
        loops += on_device(
            "kernel", "elementwise", 6.01 + number * 0.1, (60 + number, 61 + number), 100 + number,
            thread=COMPUTE_STREAM,
        )  # fmt: skip
    sync = event("cuda_runtime", "cudaStreamSynchronize", (40, 45))
    split = on_device("kernel", "ncclDevKernel_SendRecv", 17, (81, 82), 200, thread=NCCL_STREAM,
                      **{"In split size": "[1, 2]", "Process Group Name": "1"})  # fmt: skip
    events = [*marked([*OTHERS_STEP, *loops, sync, *split]), event("cpu_op", "torch.save", (90, 120))]
    trace = read(tmp_path, *events, **JOB)
    assert trace.loops and trace.chains and trace.stops and trace.waits and trace.groups
    assert {exchange.splits for exchange in trace.exchanges} == {None, (1, 2)}
    assert RankTrace.from_json(json.loads(json.dumps(trace.to_json()))) == trace


def answer_of_process(path: Path) -> dict[str, Any]:
    command = python_module("scalescope.results.traces.job_trace", str(path))
    done = subprocess.run(command, capture_output=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_process_answers_with_the_trace(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank3.json.gz", OTHERS, **JOB)
    assert RankTrace.from_json(answer_of_process(path)["trace"]) == read_trace(path)


def test_a_process_answers_with_the_reason_why_not(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank3.json.gz", OTHERS)
    path.write_bytes(path.read_bytes()[:-20])
    assert list(answer_of_process(path)) == list(answer_of_process(tmp_path / "none.json")) == ["refused"]


# damaged and hostile files


@pytest.mark.parametrize(
    "events",
    [[], steps_of(cpu_step(), 1), [{"ph": "M", "name": "process_name"}]],
    ids=["none", "one", "other"],
)
def test_a_trace_without_work_is_refused(tmp_path: Path, events: list[Event]) -> None:
    with pytest.raises(ValueError, match="no work"):
        read(tmp_path, *events)


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "trace.json"
    text = json.dumps({"traceEvents": OTHERS})
    path.write_text(text[: int(len(text) * kept)])
    with pytest.raises(ValueError, match="damaged"):
        read_trace(path)


def nested(depth: int) -> list[Any]:
    values: list[Any] = [4]
    for _ in range(depth):
        values = [values]
    return values


def sent(**facts: Any) -> Event:
    return kernel("ncclDevKernel_AllReduce", (45, 46), NCCL_STREAM, **ALL_REDUCE | facts)


HOSTILE: dict[str, Event] = {
    "negative duration": kernel("gemm", (50, 40), COMPUTE_STREAM),
    "no number as time": {**kernel("gemm", (45, 46), COMPUTE_STREAM), "ts": math.nan},
    "endless": {**kernel("gemm", (45, 46), COMPUTE_STREAM), "dur": math.inf},
    "long name": kernel("gemm" * 250_000, (45, 46), COMPUTE_STREAM),
    "name of another type": {**kernel("", (45, 46), COMPUTE_STREAM), "name": nested(500)},
    "category of another type": {**kernel("gemm", (45, 46), COMPUTE_STREAM), "cat": nested(500)},
    "correlation of another type": kernel("gemm", (45, 46), COMPUTE_STREAM, correlation=[1]),
    "huge size": sent(**{"In msg nelems": 10**400}),
    "huge group": sent(**{"Process Group Name": "9", "Group size": 10**400}),
    "negative size": sent(**{"In msg nelems": -1}),
    "facts of other types": sent(**{key: [[]] for key in ALL_REDUCE}),
    "ranks nested": sent(**{"Process Group Name": "9", "Process Group Ranks": "[" * 900}),
    "endless copy": event("gpu_memcpy", "Memcpy DtoD", (45, 46), thread=COMPUTE_STREAM, bytes=math.inf),
    "copy of no number": event("gpu_memcpy", "Memcpy DtoD", (45, 46), thread=COMPUTE_STREAM, bytes=math.nan),
    "huge shapes": event("cpu_op", "aten::mm", (10.5, 10.6), **{"Input Dims": [[10**300] * 2] * 2}),
    "nested shapes": event("cpu_op", "aten::mm", (10.5, 10.6), **{"Input Dims": nested(500)}),
    "shapes of other types": event(
        "cpu_op", "aten::mm", (10.5, 10.6),
        **{"Input Dims": [[4, 4], [4, 4]], "Input type": 3, "Input Strides": 3, "Concrete Inputs": 3},
    ),
    "nested shapes of an exchange": event(
        "user_annotation", "nccl:all_reduce", (10.5, 10.6),
        **{"Input Dims": nested(500), "Input type": ["float"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_an_event_with_hostile_values_does_not_change_the_steps(tmp_path: Path, hostile: Event) -> None:
    """Each lies where other kernels run, or where the host is between operations."""
    trace = read(tmp_path, *OTHERS, hostile)
    assert [step["compute_s"] for step in trace.steps] == pytest.approx([0.060, 0.060])
    assert times(trace) == pytest.approx([0.100, 0.100])
    assert sums(trace) == pytest.approx(times(trace))
    assert len(json.dumps(trace.to_json(), allow_nan=False)) < 20_000


def test_names_of_users_hosts_and_folders_are_not_kept(tmp_path: Path) -> None:
    private = {"user": "somebody", "hostname": "secret-host", "traceName": "/home/somebody/trace.json"}
    process = {"ph": "M", "name": "process_name", "args": {"name": "python /home/somebody/train.py"}}
    labelled = [{**each, "args": {**each["args"], **private}, "pid": "secret-host"} for each in OTHERS]
    job = {name: {**value, **private} for name, value in JOB.items() if isinstance(value, dict)}
    text = json.dumps(read(tmp_path / "somebody", process, *labelled, **private, **job).to_json())
    assert not [name for name in ("somebody", "secret-host", "/home") if name in text]
    assert "model.py(12): forward" in text
