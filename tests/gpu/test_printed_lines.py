"""The lines that `tune` prints for a GPU: plain scripts with them train on a real one."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalescope.catalog.code_lines import ScriptContext
from scalescope.report.tuning.code import lever_codes
from tests.builders.plain_loop import LoopOptions, plain_loop
from tests.conftest import clean_environment
from tests.speed import patience

pytestmark = pytest.mark.gpu

_WORKLOAD = Path(__file__).parents[1] / "image_workload.py"
_COMBINATIONS: dict[str, dict[str, tuple[Any, Any]]] = {
    "fp16, channels_last, asynchronous copies": {
        "precision": ("fp32", "fp16"),
        "memory_format": ("contiguous", "channels_last"),
        "num_workers": (None, 1),
        "pin_memory": (False, True),
        "non_blocking": (False, True),
    },
    "tf32, copies ahead": {
        "precision": ("fp32", "tf32"),
        "cudnn_benchmark": (False, True),
        "fused_optimizer": (False, True),
        "pin_memory": (False, True),
        "prefetch_stream": (False, True),
    },
    "bf16 in CUDA graphs": {
        "precision": ("fp32", "bf16"),
        "compile": ("none", "reduce-overhead"),
        "memory_format": ("contiguous", "channels_last"),
        "attention": ("auto", "flash"),
    },
}


@pytest.mark.parametrize("changes", _COMBINATIONS.values(), ids=list(_COMBINATIONS))
def test_a_script_with_the_lines_trains(changes: dict[str, tuple[Any, Any]], tmp_path: Path) -> None:
    context = ScriptContext(device="cuda")
    lines = [line for lever in lever_codes(changes, context) for line in lever.added]
    options = LoopOptions(batch_size=4, window_s=0.2)
    script = tmp_path / "script.py"
    script.write_text(plain_loop(f"{_WORKLOAD}:build", lines, context, options))
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=patience(200),
    )
    assert ended.returncode == 0, ended.stderr
    printed = json.loads(ended.stdout)
    assert printed["samples_per_s"] > 0 and math.isfinite(printed["loss"])
