"""Traces on disk: their names, what in them counts, and what is none."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalescope.results.traces import events as trace
from scalescope.results.traces.events import is_communication, is_transfer, read_events, trace_name

WHOLE = {"ph": "X", "name": "aten::mm", "ts": 1, "dur": 2}


def written(path: Path, content: Any) -> Path:
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "gloo:all_reduce",
        "gloo:send 0->1",
        "nccl:all_reduce",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t",
    ],
)
def test_transfers_are_known_by_their_names(name: str) -> None:
    assert is_communication(name)


def test_on_the_host_only_gloo_s_events_are_transfers_themselves() -> None:
    assert is_transfer("gloo:all_reduce")
    assert not any(map(is_transfer, ["nccl:all_reduce", "ncclDevKernel_AllReduce", "c10d::allreduce_"]))


@pytest.mark.parametrize("name", ["aten::mm", "c10d::allreduce_", "not gloo:", "scalescope.backward", ""])
def test_other_events_are_no_transfers(name: str) -> None:
    assert not is_communication(name)


def test_every_rank_and_launch_has_a_trace_of_its_own() -> None:
    assert trace_name("abc", 1, 23) == "traces/abc-1-23.pt.trace.json.gz"


def test_the_parts_of_a_step_have_names_of_their_own() -> None:
    names = {trace.INPUT, trace.FORWARD, trace.BACKWARD, trace.OPTIMIZER, trace.CLEAR, trace.COMPUTE}
    assert len(names) == 6
    assert all(name.startswith(trace.PREFIX) for name in names)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("content", [{"traceEvents": [WHOLE]}, [WHOLE]], ids=["object", "list"])
def test_both_kinds_of_chrome_traces_are_read(tmp_path: Path, name: str, content: Any) -> None:
    assert read_events(written(tmp_path / name, content)) == [WHOLE]


def test_only_complete_events_count(tmp_path: Path) -> None:
    others = [{**WHOLE, "ph": "i"}, {"ph": "X", "ts": 1}, {"ts": 1, "dur": 1}, None, 3, "X"]
    assert read_events(written(tmp_path / "trace.json", [*others, WHOLE])) == [WHOLE]


@pytest.mark.parametrize("content", [{}, {"traceEvents": None}, {"traceEvents": {}}, 3, "text", None])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ValueError, match="not a Chrome trace: it has no list of events"):
        read_events(written(tmp_path / "trace.json", content))


def _cut_off(whole: bytes) -> bytes:
    return whole[: len(whole) // 2]


def _scribbled(whole: bytes) -> bytes:
    """A block in the middle overwritten."""
    return whole[:100] + b"\xff" * 200 + whole[300:]


@pytest.mark.parametrize("damage", [_cut_off, _scribbled])
def test_a_damaged_file_is_reported(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = written(tmp_path / "trace.json.gz", [{**WHOLE, "name": f"aten::{n * n}"} for n in range(500)])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="the file is damaged"):
        read_events(path)
