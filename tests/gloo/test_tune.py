"""`tune` on attached ranks: two real ranks, one launch of everything, no verdict."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TINY
from tests.gloo.conftest import Start, start_as_ranks
from tests.gloo.real_runs import FinishedRun

pytestmark = pytest.mark.gloo


def test_tune_on_attached_ranks_launches_everything_once_and_judges_nothing(start: Start) -> None:
    levers = "--levers=bucket_cap_mb=1,comm_hook=fp16,pin_cores,env=OMP_NUM_THREADS=1"
    run, other = start_as_ranks(start, "tune", *TINY, levers)
    finished = run.finish()
    assert finished.returncode == 0, finished.stderr
    assert other.finish().returncode == 0
    assert run.leftovers() == other.leftovers() == []
    assert {(result["launch"], result["status"], len(result["ranks"])) for result in finished.results} == {
        (0, "ok", 2)
    }
    assert len({result["trial_id"] for result in finished.results}) == len(finished.results) == 3
    tuning = json.loads((finished.folder / "tuning.json").read_text())
    rows = {
        tuple(row["levers"]): (row["verdict"], row["ci95_speedup"], row["launches"])
        for row in tuning["combinations"]
    }
    once = (None, None, 1)
    assert rows == {(): once, ("bucket_cap_mb 1.0",): once, ("comm_hook fp16",): once}
    changes = [row["loss_change"] for row in tuning["combinations"] if row["levers"]]
    assert all(abs(change) < 0.02 for change in changes)
    assert {lever["lever"] for lever in tuning["inapplicable"]} == {"pin_cores no", "env OMP_NUM_THREADS=1"}
    assert (tuning["finished"], tuning["recommended"], tuning["winner"]) == (True, False, [])
    assert {row["launches"] for row in finished.summary["results"]["training"]} == {1}


@pytest.mark.basic
def test_a_search_with_real_ranks_measures_the_baseline_first_and_answers(start: Start) -> None:
    """Whatever the machine is like: what is fastest here is not the question."""
    run = start(
        "tune",
        *TINY,
        "--world-size=2",
        "--levers=bucket_cap_mb=1,comm_hook=fp16",
        "--repeats=2",
        "--budget=5m",
    )
    finished = run.finish()
    assert finished.returncode == 0, finished.stderr
    assert run.leftovers() == []
    tuning = json.loads((finished.folder / "tuning.json").read_text())
    first = finished.results[0]
    assert (first["trial_id"], first["stage"]["kind"]) == (tuning["baseline"], "baseline")
    ids = {row["trial_id"] for row in tuning["combinations"]}
    silent = tuning["without_communication"]
    assert {result["trial_id"] for result in finished.results} == ids | (
        {silent["trial_id"]} if silent else set()
    )
    assert {lever["lever"] for lever in tuning["levers"]} == {"bucket_cap_mb 1.0", "comm_hook fp16"}
    assert tuning["recommended"] == (finished.folder / "tuned.yaml").is_file()
    assert tuning["recommended"] or tuning["at_most"] is not None


_SCRIPT = """
import sys
import torch
from torch import nn
if "--seed" in sys.argv:
    torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
while True:
    inputs = torch.randn(32, 16)
    nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("is_seeded", [True, False])
def test_losses_of_a_command_are_compared_where_its_script_is_seeded(
    start: Start, tmp_path: Path, is_seeded: bool
) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    flags = ("--device=cpu", "--levers=fused_optimizer", "--repeats=1", "--window=0.3s", "--budget=5m")
    words = (sys.executable, "train.py", *(("--seed",) if is_seeded else ()))
    finished = start("tune", *flags, "--", *words).finish()
    assert finished.returncode == 0, finished.stderr
    for result in finished.results:
        samples = result["ranks"][0]["samples"]
        assert len(samples["loss"]) == len(samples["step_time_s"])
        assert len(samples["warmup_loss"]) >= len(samples["warmup_step_time_s"])
        assert result["ranks"][0]["counters"]["observed/seeded"] == int(is_seeded)
    tuning = json.loads((finished.folder / "tuning.json").read_text())
    (tried,) = [row for row in tuning["combinations"] if row["levers"]]
    assert tried["loss_differs"] is False
    if is_seeded:
        assert (abs(tried["loss_change"]) < 0.02, tried["loss_unknown"]) == (True, None)
    else:
        assert (tried["loss_change"], tried["loss_unknown"]) == (None, "not seeded")


def _with_tries(start: Start) -> tuple[FinishedRun, list[dict[str, Any]]]:
    """A search with what was tried in the starts of others; one that a busy machine slows is left out."""
    levers = "--levers=precision=bf16,fused_optimizer=true"
    flags = (*TINY, levers, "--threads-per-rank=1", "--repeats=2", "--budget=5m")
    for number in range(4):
        run = start("tune", *flags, folder=f"run{number}")
        finished = run.finish()
        assert finished.returncode == 0, finished.stderr
        assert run.leftovers() == []
        tries = [row for row in finished.results if "beside_step_s" in row["ranks"][0]["counters"]]
        if tries:
            break
    return finished, tries


@pytest.mark.thorough
def test_what_can_be_switched_is_tried_in_the_start_of_another_launch(start: Start) -> None:
    finished, tries = _with_tries(start)
    bundles = [
        result
        for result in finished.results
        if result["settings"]["precision"] == "bf16" and result["settings"]["fused_optimizer"]
    ]
    assert [(tried["settings"]["precision"], tried["status"]) for tried in tries] == [("fp32", "ok")]
    (tried,) = tries
    assert tried["stage"]["base"] == bundles[0]["trial_id"]
    assert tried["started_at"] == bundles[0]["started_at"]
    assert not bundles[0]["notes"]
    tuning = json.loads((finished.folder / "tuning.json").read_text())
    assert ["fused_optimizer True"] in [row["levers"] for row in tuning["combinations"]]
