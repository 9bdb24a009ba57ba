"""`memory` on a real GPU: the forecast holds, the trace adds up, and the search finds the edge."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli

pytestmark = pytest.mark.gpu

TRANSFORMER = ["--workload=transformer", "--batch-size=1,2,4,8"]


def entries(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())["results"]["memory"]
    return rows


def measured(folder: Path) -> list[dict[str, Any]]:
    return [entry for entry in entries(folder) if entry["kind"] == "measure"]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("task", ["classification", "next_token"])
def test_the_forecast_is_within_ten_percent(cli: Cli, tmp_path: Path, optimizer: str, task: str) -> None:
    asked = [*TRANSFORMER, f"--optimizer={optimizer}", f"--task={task}", "--no-search", "--output-dir=D"]
    done = cli("memory", *asked, within_s=280)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = measured(tmp_path / "D")
    assert [row["batch_size"] for row in rows] == [1, 2, 4, 8]
    for row in rows:
        assert row["no_forecast"] is None
        assert abs(row["difference"]) <= 0.10, row
        assert row["forecast_bytes"]["parameters"] == pytest.approx(
            row["measured_bytes"]["parameters"], rel=0.01
        )
        assert row["forecast_bytes"]["optimizer"] == pytest.approx(
            row["measured_bytes"]["optimizer"], rel=0.01, abs=1 << 20
        )


def test_the_trace_adds_up(cli: Cli, tmp_path: Path) -> None:
    done = cli("memory", *TRANSFORMER, "--optimizer=adamw", "--no-search", "--output-dir=D", within_s=280)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in (tmp_path / "D" / "trials.jsonl").read_text().splitlines():
        counters = json.loads(line)["ranks"][0]["counters"]
        assert "trace/problem" not in counters, counters["trace/problem"]
        parts = counters["trace/activations"] + counters["trace/gradients"] + counters["trace/temporary"]
        assert parts - counters["trace/given_back"] == counters["trace/growth"]
        # The allocator rounds up what it hands out; nothing else lies between the two.
        assert counters["measured/before_step"] + counters["trace/growth"] == pytest.approx(
            counters["measured/peak"], rel=0.05, abs=16 << 20
        )
        assert counters["trace/held_after_forward"] == pytest.approx(
            counters["measured/activations"], rel=0.05, abs=16 << 20
        )
        lasting = sum(
            counters[f"measured/{name}"]
            for name in ("parameters", "buffers", "optimizer", "inputs", "library")
        )
        assert counters["measured/before_step"] == pytest.approx(lasting, rel=0.05, abs=16 << 20)


def test_the_largest_batch_within_a_limit_is_found(cli: Cli, tmp_path: Path) -> None:
    done = cli("memory", *TRANSFORMER, "--memory-limit=8GiB", "--output-dir=D", within_s=290)
    assert done.returncode == 0, done.stdout + done.stderr
    [job] = [entry for entry in entries(tmp_path / "D") if entry["kind"] == "job"]
    assert job["search_finished"] and job["largest_batch_is"] == "tried"
    assert job["tries"] <= 8
    calculated = (job["capacity_bytes"] - job["base_bytes"]) / job["bytes_per_sample"]
    assert job["largest_batch"] == pytest.approx(calculated, rel=0.15)


def test_ddp_over_nccl_has_a_forecast(cli: Cli, tmp_path: Path) -> None:
    done = cli("memory", *TRANSFORMER, "--strategy=ddp", "--no-search", "--output-dir=D", within_s=280)
    assert done.returncode == 0, done.stdout + done.stderr
    for row in measured(tmp_path / "D"):
        assert abs(row["difference"]) <= 0.15, row
