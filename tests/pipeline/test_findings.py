"""Findings of the diagnosis for runs whose cause is known."""

from pathlib import Path
from typing import Any

import pytest

from scalescope.diagnose.step_rules import buffers
from scalescope.experiment.trial import Trial
from scalescope.launch.fake import CostModel, FakeLauncher
from scalescope.launch.launcher import Outcome
from scalescope.studies.stored import explain
from tests.builders.studies import scale

from .recording import RecordingWatcher, ask, summary_of


def findings(model: CostModel, **asked: Any) -> list[dict[str, Any]]:
    wanted = {"world_size": [1, 2], "batch_size": 50, "repeats": 3, **asked}
    report = scale(ask("scale", **wanted), FakeLauncher(model), RecordingWatcher())
    entries: list[dict[str, Any]] = summary_of(report.path)["results"]["findings"]
    return entries


@pytest.mark.parametrize(
    ("model", "asked", "rule"),
    [
        (CostModel(exposed_comm_s={2: 0.4}, bytes_per_s=1e7), {}, "communication-bound by bandwidth"),
        (
            CostModel(exposed_comm_s={2: 0.02}, latency_s=0.018, bytes_per_s=1e12),
            {},
            "communication-bound by latency",
        ),
        (CostModel(exposed_comm_s={2: 0.01}, bytes_per_s=4e8), {}, "too little work for every exchange"),
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
    assert [
        finding for finding in findings(CostModel(launch_noise=0.005)) if finding["severity"] != "low"
    ] == []


def test_ranks_slower_than_one_rank_are_reported_as_negative_scaling() -> None:
    by_rule = {
        finding["rule"]: finding for finding in findings(CostModel(exposed_comm_s={2: 0.4}, bytes_per_s=1e7))
    }
    assert by_rule["negative scaling"]["evidence"]["largest loss"]["value"] == "communication"


def test_gradient_compression_is_the_first_advice_only_on_a_slow_network() -> None:
    slow = findings(CostModel(exposed_comm_s={2: 0.4}, bytes_per_s=1e7))[0]
    assert slow["advice"][0]["command"].endswith("--levers comm_hook")
    usual = findings(CostModel(exposed_comm_s={2: 0.01}, fixed_s=0.05, bytes_per_s=1e9), output_dir="usual")
    bandwidth = next(finding for finding in usual if finding["rule"] == "communication-bound by bandwidth")
    assert bandwidth["advice"][0]["command"].endswith("--levers batch_size")
    assert bandwidth["advice"][-1]["command"].endswith("--levers comm_hook")


def test_what_is_in_use_is_not_advised() -> None:
    model = CostModel(exposed_comm_s={2: 0.4}, bytes_per_s=1e7)
    first = findings(model, comm_hook="fp16")[0]
    assert not any("comm_hook" in advice["command"] for advice in first["advice"])


def test_a_stored_run_is_explained_without_measuring() -> None:
    findings(CostModel(exposed_comm_s={2: 0.4}, bytes_per_s=1e7))
    sections = explain(Path("run"))
    text = "\n".join(
        [section.title or "" for section in sections] + [line for s in sections for line in s.lines]
    )
    assert "2 ranks deliver" in text
    assert "communication-bound by bandwidth" in text
    report = Path("run/performance_report.txt").read_text()
    assert "communication" in report and "scalescope tune" in report


def test_a_rule_that_fails_loses_only_its_own_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(facts: object) -> None:
        raise KeyError("gone")

    monkeypatch.setattr(buffers, "rule", broken)
    reported = findings(CostModel(late_s={1: 0.02}))
    assert reported[0]["rule"] == "straggling rank"
    assert "KeyError" in Path("run/performance_report.txt").read_text()


@pytest.mark.parametrize("status", ["failed", "hang", "oom"])
def test_a_failed_collective_is_listed_without_changing_the_exit_code(status: Any) -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        comm = trial.settings["benchmark"] == "comm"
        return Outcome(status=status, reason="no network") if comm else None

    launcher = FakeLauncher(CostModel(exposed_comm_s={2: 0.01}), outcomes=fail)
    report = scale(ask("scale", world_size=[1, 2], batch_size=50, repeats=2), launcher, RecordingWatcher())
    assert report.exit_code == 0
    assert report.sections[-1].title == "Failed"


def test_waiting_not_explained_by_transfer_is_not_called_communication_bound() -> None:
    model = CostModel(exposed_comm_s={2: 0.5}, bytes_per_s=1e9)
    assert not any(finding["rule"].startswith("communication-bound") for finding in findings(model))


def test_advice_narrows_a_run_of_several_jobs_to_the_one_it_is_about() -> None:
    model = CostModel(exposed_comm_s={2: 0.4}, bytes_per_s=1e7)
    first = findings(model, precision=["fp32", "bf16"])[0]
    assert "precision " in first["about"]
    assert "--precision " in first["advice"][0]["command"]


def test_communication_that_cannot_be_switched_off_is_an_upper_bound() -> None:
    looking = {"find_unused_parameters": "true", "static_graph": "false"}
    reported = findings(CostModel(contention_s=0.02), **looking)
    assert not any(finding["rule"] == "too little work for every exchange" for finding in reported)
    assert all(
        "at most" in finding["claim"]
        for finding in reported
        if finding["rule"].startswith("communication-bound")
    )
