"""Simulated folders of traces: the truth accounts for all time, and files have the fields of the profiler."""

import dataclasses
import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("trace_folders", ROOT / "benchmarks" / "trace_folders.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


folders = _script()
SMALL = {"layers": 2, "kernels": 4, "kernel_s": 400e-6, "steps": 2}  # long kernels: the host is no limit
CASES = {case.name: case for case in folders.CASES}
NEW = dataclasses.replace(CASES["slow-kernels-8"], **SMALL, truncated=(6,), missing=(1,))
OLD = dataclasses.replace(CASES["healthy-8-old"], **SMALL)


def _read(file: Path) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
    return trace


def _answer(case: Any, mean: dict[str, float]) -> dict[str, Any]:
    """What a command that knows the truth would say."""
    parts = {f"{name}_s": mean[name] for name in ("compute", "waiting", "copies", "idle_input", "idle_host")}
    parts |= {"exposed_s": mean["transfer"] + mean["waiting"], "idle_queued_s": mean["idle_other"]}
    finding = {"rule": folders.RULES[case.cause], "share": 0.1, "ranks": list(case.late)}
    return {
        "breakdown": parts,
        "waiting": {"late_ranks": list(case.late), "known": "bounds"},
        "findings": [finding] if case.cause != "healthy" else [],
        "unread": {f"folder/{case.file(rank)}": "truncated" for rank in case.truncated},
    }


def test_cases_are_told_apart_and_can_be_simulated() -> None:
    cases = folders.CASES
    assert len({case.name for case in cases}) == len({case.seed for case in cases}) == len(cases)
    for case in cases:
        assert case.ranks % case.inner == 0 and case.cause in folders.RULES
        assert set(case.late) <= set(range(case.ranks))


@pytest.mark.parametrize("case", [NEW, OLD], ids=["new", "old"])
def test_the_truth_accounts_for_all_time(case: Any) -> None:
    for rank in folders.simulate(case):
        steps = folders.truth_of(rank)
        ends = [max(one.end_s for one in rank.activities if one.step == step) for step in range(case.steps)]
        begins = [rank.marks[0], *ends[:-1]]
        windows = [end - begin for begin, end in zip(begins, ends, strict=True)]
        assert [sum(step.values()) for step in steps] == pytest.approx(windows)
        assert all(part >= 0.0 for step in steps for part in step.values())


def test_the_late_rank_computes_longer_and_the_others_wait() -> None:
    steps = [folders.truth_of(rank)[-1] for rank in folders.simulate(NEW)]
    late = steps.pop(NEW.late[0])
    assert all(late["compute"] > 1.15 * step["compute"] for step in steps)
    assert all(late["waiting"] < 0.1 * step["waiting"] for step in steps)


@pytest.mark.parametrize("case", [NEW, OLD], ids=["new", "old"])
def test_files_have_what_the_profiler_writes(case: Any, tmp_path: Path) -> None:
    folders.write_case(case, tmp_path / "traces")
    written = {file.name for file in (tmp_path / "traces").iterdir()}
    assert written == {case.file(rank) for rank in (*case.readable, *case.truncated)}
    for rank in case.truncated:
        with pytest.raises(EOFError):
            _read(tmp_path / "traces" / case.file(rank))
    trace = _read(tmp_path / "traces" / case.file(5))
    assert trace["distributedInfo"]["rank"] == 5
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    calls = {event["args"]["correlation"] for event in events if event["cat"] == "cuda_runtime"}
    kernels = [event for event in events if event["cat"] == "kernel"]
    assert kernels and all(event["args"]["correlation"] in calls for event in kernels)
    collectives = [event["args"] for event in kernels if event["name"].startswith("nccl")]
    assert collectives and all(("Process Group Ranks" in args) == case.has_metadata for args in collectives)
    names = {event["name"] for event in events}
    evaluated = "autograd::engine::evaluate_function: MmBackward0"
    assert {"ProfilerStep#3", "ProfilerStep#4", "Optimizer.step#AdamW.step", folders.LOADER} <= names
    assert {evaluated, "c10d::allreduce_", "record_param_comms", "aten::mm"} <= names
    groups = trace["distributedInfo"].get("pg_config", [])
    assert [group["ranks"] for group in groups][1:] == ([[1, 3, 5, 7], [4, 5]] if case.has_metadata else [])


def test_the_truth_itself_scores_in_full(tmp_path: Path) -> None:
    mean = folders.write_case(NEW, tmp_path / "traces")["mean"]
    row = folders.scored(NEW, mean, _answer(NEW, mean))
    assert set(row["terms"].values()) == {True}
    assert False not in row["checks"].values() and row["named"] == [5]


def test_wrong_terms_and_names_are_counted() -> None:
    mean = dict.fromkeys((*folders.PARTS.values(), "input", "idle"), 0.0) | {"compute": 0.9, "waiting": 0.1}
    answer = _answer(OLD, mean | {"compute": 0.8})
    answer["waiting"]["late_ranks"] = [3]
    answer["breakdown"]["waiting_s"] = None
    row = folders.scored(OLD, mean | {"step": 1.0}, answer)
    assert row["errors"]["compute"] == pytest.approx(-0.1) and row["terms"]["compute"] is False
    assert row["errors"]["transfer"] == pytest.approx(0.0) and row["terms"]["waiting"] is None
    assert not row["checks"]["no wrong rank named"]
