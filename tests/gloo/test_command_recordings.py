"""Real commands are recorded: who waits for whom, the waterfall with it, and refusals in one line."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from scalescope.results.traces.summary import TraceSummary
from tests.builders.commands import Commands, command_trial
from tests.conftest import Cli

pytestmark = pytest.mark.gloo

_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node={world_size}")
_SCRIPTS = Path(__file__).parents[1] / "commands" / "scripts"
_SCRIPT = '''"""Trains on any number of ranks; the second one is late in every step."""

import os
import time

import torch
import torch.distributed as dist

if "RANK" in os.environ:
    dist.init_process_group("gloo")
model = torch.nn.Linear(64, 64)
if dist.is_initialized():
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    loss = model(torch.randn(8, 64)).square().mean()
    if os.environ.get("RANK") == "1":
        time.sleep(0.06)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
'''


def _summaries(line: dict[str, Any]) -> list[TraceSummary]:
    summaries = [TraceSummary.from_record(rank["samples"]) for rank in line["ranks"]]
    known = [summary for summary in summaries if summary is not None]
    assert len(known) == len(summaries)
    return known


def test_ranks_of_a_command_record_when_they_arrive(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    flags = ("--device=cpu", "--repeats=1", "--window=0.5s", "--warmup-steps=3", "--no-repeat-disturbed")
    done = cli(
        *("scale", "--world-size=1,2", *flags, "--output-dir=run", "--", *_TORCHRUN, "train.py"), within_s=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(line) for line in (tmp_path / "run" / "trials.jsonl").read_text().splitlines()]
    recorded = [line for line in results if line["settings"]["benchmark"] != "train"]
    (line,) = [line for line in recorded if line["settings"]["benchmark"] == "arrivals"]
    assert (line["status"], line["settings"]["world_size"]) == ("ok", 2)
    assert not any(line["settings"]["benchmark"] == "breakdown" for line in recorded)  # the CPU has a clock
    early, late = _summaries(line)
    assert early.collective_s is not None and late.collective_s is not None
    # The other rank waits in its exchange; on a busy machine it may come late to one itself.
    waits = [sum(early.collective_s[step]) - sum(late.collective_s[step]) for step in range(early.steps)]
    assert statistics.median(waits) > 0.0
    summary = json.loads((tmp_path / "run" / "results.json").read_text())
    waterfall = summary["results"]["scaling"][-1]["waterfall"]
    terms = {term["name"]: term for term in waterfall["terms"]}
    assert {"contention", "random skew", "communication"} <= set(terms)
    assert terms["communication"]["time_s"] is not None and not terms["communication"]["includes"]
    assert waterfall["communication_parts"] is not None


@pytest.mark.parametrize("script", ["gan.py", "fsdp2.py"])
def test_scripts_of_other_shapes_are_recorded(script: str, tmp_path: Path) -> None:
    words = " ".join((*_TORCHRUN, str(_SCRIPTS / script)))
    commands = Commands(tmp_path / "run")
    outcome = commands.launch(command_trial(words, world_size=2, benchmark="arrivals", window=0.2))
    assert outcome.status == "ok", outcome.reason
    for record in outcome.records:
        summary = TraceSummary.from_record(record.samples)
        assert summary is not None and summary.steps >= 3
        assert summary.collective_s is not None and len(summary.collective_s[0]) >= 1
        assert "measured_steps" not in record.counters
        assert "step_time_s" not in record.samples


def test_parts_of_a_gpu_step_are_refused_where_a_script_trains_on_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    commands = Commands(tmp_path / "run")
    trial = command_trial(f"{sys.executable} {tmp_path / 'train.py'}", benchmark="breakdown")
    outcome = commands.launch(trial)
    assert (outcome.status, outcome.bad_input) == ("failed", True)
    assert outcome.reason.startswith("breakdown requires a CUDA GPU")
