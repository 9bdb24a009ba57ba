"""What the diagnosis says of runs whose cause is known."""

from typing import Any

import pytest

from scalescope.launch.fake import CostModel, FakeLauncher
from scalescope.studies.explain import explain
from scalescope.studies.scale import scale

from .recording import RecordingWatcher, ask, summary_of


def findings(model: CostModel, **asked: Any) -> list[dict[str, Any]]:
    wanted = {"world_size": [1, 2], "batch_size": 50, "repeats": 3, **asked}
    report = scale(ask("scale", **wanted), FakeLauncher(model), RecordingWatcher())
    found: list[dict[str, Any]] = summary_of(report.path)["results"]["findings"]
    return found


@pytest.mark.parametrize(
    ("model", "asked", "rule"),
    [
        (CostModel(exposed_comm_s={2: 0.4}, bytes_per_s=1e7), {}, "communication-bound by bandwidth"),
        (CostModel(exposed_comm_s={2: 0.02}, bytes_per_s=1e12), {}, "communication-bound by latency"),
        (CostModel(exposed_comm_s={2: 0.02}), {}, "too little work for every exchange"),
        (CostModel(late_s={1: 0.02}), {}, "straggling rank"),
        (CostModel(contention_s=0.02), {}, "ranks slow each other down"),
        (CostModel(contention_s=0.02), {"threads_per_rank": 8}, "too many CPU threads"),
        (CostModel(input_s={2: 0.02}), {"num_workers": 1}, "input-bound"),
    ],
)
def test_the_cause_comes_first(model: CostModel, asked: dict[str, Any], rule: str) -> None:
    first = findings(model, **asked)[0]
    assert first["rule"] == rule
    assert first["severity"] == "high"
    assert first["evidence"]
    assert all(advice["command"].startswith("scalescope ") for advice in first["advice"])


def test_a_healthy_run_has_no_finding_that_costs_anything() -> None:
    assert [one for one in findings(CostModel(launch_noise=0.005)) if one["severity"] != "low"] == []


def test_ranks_that_are_slower_than_one_are_called_that() -> None:
    found = {one["rule"]: one for one in findings(CostModel(exposed_comm_s={2: 0.4}, bytes_per_s=1e7))}
    assert "most of it by exposed communication" in found["negative scaling"]["claim"]


def test_sixteen_bits_are_the_first_advice_on_a_slow_network_alone() -> None:
    slow = findings(CostModel(exposed_comm_s={2: 0.4}, bytes_per_s=1e7))[0]
    assert slow["advice"][0]["command"].endswith("--levers comm_hook")
    usual = findings(CostModel(exposed_comm_s={2: 0.04}, fixed_s=0.05, bytes_per_s=1e9), output_dir="usual")
    bandwidth = next(one for one in usual if one["rule"] == "communication-bound by bandwidth")
    assert bandwidth["advice"][0]["command"].endswith("--levers batch_size")
    assert bandwidth["advice"][-1]["command"].endswith("--levers comm_hook")


def test_what_is_in_use_is_not_advised() -> None:
    model = CostModel(exposed_comm_s={2: 0.4}, bytes_per_s=1e7)
    first = findings(model, comm_hook="fp16")[0]
    assert not any("comm_hook" in advice["command"] for advice in first["advice"])


def test_a_stored_run_is_explained_without_measuring() -> None:
    findings(CostModel(exposed_comm_s={2: 0.4}, bytes_per_s=1e7))
    from pathlib import Path

    sections = explain(Path("run"))
    text = "\n".join(
        [section.title or "" for section in sections] + [line for s in sections for line in s.lines]
    )
    assert "2 ranks deliver" in text
    assert "communication-bound by bandwidth" in text
    report = Path("run/performance_report.txt").read_text()
    assert "exposed communication" in report and "scalescope tune" in report
