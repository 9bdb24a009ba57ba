"""Healthy runs to be mutated: stored ones, and ones that a simulated launcher makes.

No launch of these has all that a launch can store. Copies get the rest: profiles, tables of every kind, the
topology of a host with GPUs, and traces.
"""

import contextlib
import gzip
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from from_tests import FakeLauncher

from mutating.calls import MODEL
from scalescope.cli import app
from scalescope.results.run_folder import find_runs
from scalescope.studies import running
from scalescope.studies.runs import resuming

_SMALL = ("--steps-per-epoch=8", "--warmup-steps=3", "--device=cpu")
_COMMANDS = {
    "train": ("train", *_SMALL, "--batch-size=4,8", "--repeats=2"),
    "scale": ("scale", *_SMALL, "--world-size=1,2", "--batch-size=8", "--repeats=3"),
    "tune": ("tune", *_SMALL, "--world-size=2", "--levers=bucket_cap_mb,precision", "--repeats=3"),
    "comm": ("comm", "--world-size=2", "--max-bytes=1M", "--repeats=2"),
    "memory": ("memory", "--device=cpu", "--batch-size=2,4"),
}


def make_sources(root: Path) -> list[Path]:
    """One run of each verb, with one launch more to make, so that there is something to resume."""
    resuming.machine_here = dict
    root.mkdir(parents=True)
    runs = []
    for name, words in _COMMANDS.items():
        run = root / name
        _call(*words, "--output-dir", str(run))
        _lose_last_launch(run)
        runs.append(run)
    _call("report", str(runs[0]), "--out", str(root / "report"))  # loads what draws, for all that follow
    return runs


def _call(*words: str) -> None:
    running._launcher_for = lambda *_: FakeLauncher(MODEL)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            app.main(list(words))
        except SystemExit as leaving:
            if leaving.code:
                raise RuntimeError(f"{words}: {errors.getvalue()}") from None


def _lose_last_launch(run: Path) -> None:
    """Take the last line away, and with it the record that the run is finished."""
    lines = (run / "trials.jsonl").read_bytes().splitlines(keepends=True)
    if len(lines) > 1:
        (run / "trials.jsonl").write_bytes(b"".join(lines[:-1]))
        record = run / "run.json"
        record.write_text(record.read_text().replace('"why": "finished"', '"why": "interrupted"'))


def enriched_copies(runs: Sequence[Path], root: Path) -> list[Path]:
    """Copies of runs with everything that is stored of some launches only."""
    copies = []
    for number, run in enumerate(runs):
        copy = root / f"{run.name}-{number}"
        shutil.copytree(run, copy)
        lines = [
            _enriched(json.loads(line), copy) for line in (copy / "trials.jsonl").read_bytes().splitlines()
        ]
        (copy / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        environment = json.loads((copy / "environment.json").read_bytes())
        environment["system"] = {**(environment.get("system") or {}), "topology": _TOPOLOGY}
        environment["systems"] = {"fake": environment["system"], "other": environment["system"]}
        (copy / "environment.json").write_text(json.dumps(environment))
        copies.append(copy)
    return copies


def _enriched(result: dict[str, Any], run: Path) -> dict[str, Any]:
    settings = result["settings"]
    for rank in result["ranks"]:
        tables, counters = rank.setdefault("tables", {}), rank["counters"]
        if settings["benchmark"] == "train":
            tables.update(_TRAINING_TABLES)
            counters.update(_TRAINING_COUNTERS)
        if settings["benchmark"] == "train" and settings["world_size"] == 1:
            tables.update(_PROFILE_TABLES)
            counters.update(_PROFILE_COUNTERS)
        if settings["benchmark"] == "breakdown":
            tables.update(_RECORDED_TABLES)
        if "trace" in counters:
            trace = run / counters["trace"]
            trace.parent.mkdir(exist_ok=True)
            trace.write_bytes(gzip.compress(json.dumps({"traceEvents": _trace_events()}).encode()))
    return result


_LAYERS = 4
_PROFILE_TABLES = {
    "gradients": [
        {"parameter": number, "size_bytes": 1 << 20, "ready_s": 0.002 * (_LAYERS - number)}
        for number in reversed(range(_LAYERS))
    ],
    "units": [
        {
            "name": name,
            "parameter_bytes": 1 << 20,
            "forward_s": 0.001,
            "backward_s": 0.002,
            "activation_bytes": 4096,
        }
        for name in ("(root)", *(f"block {number}" for number in range(_LAYERS)))
    ],
}
_PROFILE_COUNTERS = {
    "profile/step_s": 0.013,
    "profile/input_s": 0.0,
    "profile/forward_s": 0.004,
    "profile/backward_s": 0.008,
    "profile/optimizer_s": 0.001,
    "profile/rest_s": 0.0,
    "profile/buffer_bytes": 0,
    "profile/steps": 5,
    "profile/micro_batches": 1,
    "peak_memory_bytes": 64 << 20,
}
_TRAINING_TABLES = {
    "long_steps": [
        {"step": 3, "beyond_s": 0.5, "input_beyond_s": 0.4, "forward_beyond_s": 0.1, "gc_s": 0.05},
    ],
    "graph_breaks": [
        {"reason": "print", "file": "/w/train.py", "line": 7, "function": "forward", "count": 3}
    ],
    "recompilations": [
        {
            "reason": "sizes",
            "function": "forward",
            "file": "/w/m.py",
            "line": 9,
            "in_window": True,
            "time_s": 0.4,
        }
    ],
    "remaining_communication": [{"what": "SyncBatchNorm exchanges statistics"}],
}
_TRAINING_COUNTERS = {
    "compile/compilations_inside": 2,
    "compile/recompilations_inside": 1,
    "compile/recompilations_before": 0,
    "compile/inside_s": 0.4,
}
_RECORDED_TABLES = {
    "kernels": [{"name": f"gemm {number}", "time_s": 0.001, "count": 4.0} for number in range(3)],
    "synchronizations": [
        {
            "file": "/w/train.py",
            "line": 12,
            "function": "step",
            "code": "loss.item()",
            "operation": "aten::item",
            "per_step": 1.0,
            "time_s": 0.001,
            "from_trace": False,
        }
    ],
}
_TOPOLOGY = {
    "gpus": [
        {
            "index": index,
            "uuid": f"GPU-{index}",
            "name": "NVIDIA H100",
            "pci_bus": f"0000:1{index}:00.0",
            "numa_node": index % 2,
            "nvlink_version": 4,
            "nvlink_count": 18,
            "pcie_generation": 5,
            "pcie_width": 16,
        }
        for index in range(2)
    ],
    "nics": [
        {
            "name": "mlx5_0",
            "kind": "infiniband",
            "rate_bytes_per_s": 5e10,
            "pci_bus": "0000:30:00.0",
            "numa_node": 0,
        }
    ],
    "gpu_paths": {"0-1": "NV18"},
    "nic_paths": {"0-mlx5_0": "PIX", "1-mlx5_0": "SYS"},
    "numa_cores": {"0": [0, 1], "1": [2, 3]},
    "numa_distances": [[10, 21], [21, 10]],
}


def _trace_events() -> list[dict[str, Any]]:
    """Three steps of a rank on the CPU, with two exchanges each."""
    events = []
    for number in range(3):
        begin = 1e6 + 2e4 * number
        events += [
            _event(f"ProfilerStep#{number}", begin, 19_000),
            _event("scalescope.input", begin, 500),
            _event("scalescope.forward", begin + 500, 6_000),
            _event("aten::addmm", begin + 600, 5_000, category="cpu_op"),
            _event("scalescope.backward", begin + 6_500, 10_000),
            _event("autograd::engine::evaluate_function: AddmmBackward0", begin + 6_600, 5_000, "cpu_op"),
            _event("aten::mm", begin + 6_700, 4_000, category="cpu_op"),
            _event("gloo:all_reduce", begin + 10_000, 3_000, thread=2),
            _event("gloo:all_reduce", begin + 13_500, 2_500, thread=2),
            _event("scalescope.optimizer", begin + 16_500, 2_000),
        ]
    return events


def _event(
    name: str, begin_us: float, time_us: float, category: str = "user_annotation", thread: int = 1
) -> dict[str, Any]:
    arguments = {"Input Dims": [[1024]], "Input type": ["float"], "External id": 1}
    times = {"ts": begin_us, "dur": time_us}
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, **times, "args": arguments}


def runs_below(roots: Sequence[Path]) -> list[Path]:
    """All runs below folders."""
    return [path.resolve() for root in roots for path in find_runs(root)]
