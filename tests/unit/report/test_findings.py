"""Findings and readings of GPUs and processors as they are read, and where ranks are placed."""

import dataclasses
import json

import pytest

from scalescope.analysis.telemetry import TelemetrySummary
from scalescope.diagnose.finding import Advice, Diagnosis, Finding
from scalescope.report.findings import findings_json, findings_section
from scalescope.report.machine import placement_lines
from scalescope.report.render.cells import plain_text
from scalescope.report.render.markdown import markdown
from scalescope.report.training.sections import cpu_reading, gpu_reading, training_sections
from scalescope.results.ranks import RankPlacement
from scalescope.results.run import Run
from tests.builders.known_runs import make_run, make_trials

from .conftest import Render

LINE = Advice(label="remove the .item() in model.py:31")
COMMAND = Advice(label="use pinned memory", argv=("scalescope", "tune", "x"))


def make_finding(**changes: object) -> Finding:
    facts = {"rule": "host synchronization", "claim": "The host waits.", "lost": 0.7, "share": 0.7}
    return Finding(**{**facts, "cost_s": 0.0098, "advice": (LINE, COMMAND), **changes})  # type: ignore[arg-type]


def shown(finding: Finding) -> str:
    return plain_text(findings_section(Diagnosis(findings=(finding,)), every=True))


def test_the_cost_is_shown_in_time_of_the_step() -> None:
    assert "The host waits. It costs 9.80 ms of 14.0 ms per step (70 %)." in shown(make_finding())
    assert "(70 %), an estimate." in shown(make_finding(estimated=True))


def test_a_finding_without_a_cost_in_time_shows_none() -> None:
    assert "It costs" not in shown(make_finding(cost_s=None))


def test_a_cost_of_the_whole_step_names_no_other_step() -> None:
    assert "It costs 9.80 ms per step (100 %)." in shown(make_finding(share=1.0))


def test_a_line_to_change_is_told_from_a_command_to_try() -> None:
    lines = shown(make_finding()).splitlines()
    assert "   change: remove the .item() in model.py:31" in lines
    assert "   try: use pinned memory: scalescope tune x" in lines


def test_a_line_to_change_has_no_code_in_markdown() -> None:
    text = markdown(findings_section(Diagnosis(findings=(make_finding(advice=(LINE,)),)), every=True))
    assert "change: remove the .item() in model.py:31" in text.replace("\\", "")
    assert "`" not in text


def test_the_data_has_cost_and_advice() -> None:
    (stored,) = json.loads(json.dumps(findings_json(Diagnosis(findings=(make_finding(estimated=True),)))))
    assert (stored["cost_s"], stored["estimated"]) == (0.0098, True)
    assert [advice["command"] for advice in stored["advice"]] == ["", "scalescope tune x"]


_FULL = TelemetrySummary(
    gpu_utilization=0.973,
    gpu_memory_bytes=5e9,
    power_w=412.4,
    power_limit_w=700.0,
    sm_clock_hz=1.83e9,
    sm_clock_limit_hz=1.98e9,
    temperature_c=64.0,
    host_utilization=0.254,
    rank_busy_cores=1.26,
    slowdowns=("power cap", "thermal (hardware)"),
)


SLOWED = "slowed by power cap, slowed by thermal (hardware)"
CALM = dataclasses.replace(_FULL, slowdowns=())


@pytest.mark.parametrize(
    ("telemetry", "expected"),
    [
        (_FULL, f"97 % busy, 412 of 700 W, 1,830 of 1,980 MHz, 64 °C, {SLOWED}"),
        (dataclasses.replace(CALM, gpu_utilization=None), "412 of 700 W, 1,830 of 1,980 MHz, 64 °C"),
        (dataclasses.replace(CALM, power_w=None), "97 % busy, 1,830 of 1,980 MHz, 64 °C"),
        (dataclasses.replace(CALM, power_limit_w=None), "97 % busy, 412 W, 1,830 of 1,980 MHz, 64 °C"),
        (dataclasses.replace(CALM, sm_clock_hz=None), "97 % busy, 412 of 700 W, 64 °C"),
        (dataclasses.replace(CALM, sm_clock_limit_hz=None), "97 % busy, 412 of 700 W, 1,830 MHz, 64 °C"),
        (dataclasses.replace(CALM, temperature_c=None), "97 % busy, 412 of 700 W, 1,830 of 1,980 MHz"),
        (TelemetrySummary(gpu_utilization=0.0), "0 % busy"),
        # A GPU whose driver keeps no samples is not called idle.
        (
            dataclasses.replace(_FULL, gpu_utilization=None, power_w=None),
            f"1,830 of 1,980 MHz, 64 °C, {SLOWED}",
        ),
        (TelemetrySummary(problem="NVML says no"), "unknown: NVML says no"),
        (TelemetrySummary(gpu_utilization=1.0, problem="NVML says no"), "100 % busy"),  # in another launch
        (TelemetrySummary(), None),
        (TelemetrySummary(host_utilization=0.5), None),
    ],
)
def test_what_is_known_of_a_gpu_is_shown(telemetry: TelemetrySummary, expected: str | None) -> None:
    assert gpu_reading(telemetry) == expected


@pytest.mark.parametrize(
    ("telemetry", "expected"),
    [
        (_FULL, "1.3 cores busy per rank, 25 % of the host busy"),
        (
            TelemetrySummary(host_utilization=0.0, rank_busy_cores=0.0),
            "0.0 cores busy per rank, 0 % of the host busy",
        ),
        (TelemetrySummary(host_utilization=0.254), "25 % of the host busy"),
        (TelemetrySummary(), None),
        (TelemetrySummary(gpu_utilization=0.5), None),
    ],
)
def test_what_is_known_of_processors_is_shown(telemetry: TelemetrySummary, expected: str | None) -> None:
    assert cpu_reading(telemetry) == expected


def _shown(render: Render, run: Run) -> dict[str, str]:
    lines = render(training_sections(run), verbose=True).splitlines()
    return {label.strip(): text for label, _, text in (line.partition(": ") for line in lines) if text}


def test_the_summary_has_a_line_for_each_reading(render: Render) -> None:
    trials = make_trials(world_size=2, batch_size=64)
    telemetry = {
        "samples": 2,
        "gpus": {"a": {"utilization": [0.4, 0.6]}},
        "cpu": {"host_utilization": 0.9, "rank_busy_cores": [1.0, 1.0]},
    }
    shown = _shown(render, make_run(trials, launches=1, telemetry=telemetry))
    assert shown["GPU"] == "50 % busy"
    assert shown["CPU"] == "1.0 cores busy per rank, 90 % of the host busy"
    unseen = _shown(render, make_run(trials, launches=1))
    assert "Compute rate" in unseen
    assert not {"GPU", "CPU"} & set(unseen)


def placed(rank: int, host: str = "node", name: str = "H100") -> RankPlacement:
    return RankPlacement(rank=rank, host=host, device_name=name, line=f"[Rank {rank}] on {name}")


@pytest.mark.parametrize("ranks", [1, 8])
def test_few_ranks_are_shown_one_by_one(ranks: int) -> None:
    assert placement_lines([placed(rank) for rank in range(ranks)]) == [
        f"[Rank {rank}] on H100" for rank in range(ranks)
    ]


def test_more_than_eight_ranks_are_grouped_by_node() -> None:
    ranks = [placed(rank, "a" if rank < 8 else "b") for rank in range(16)]
    assert placement_lines(ranks) == [
        "[Ranks 0-7] a: 8 ranks, name=H100",
        "[Ranks 8-15] b: 8 ranks, name=H100",
    ]


def test_different_devices_of_a_node_are_all_named() -> None:
    ranks = [placed(rank, name="H200" if rank < 8 else "H100") for rank in range(12)]
    assert placement_lines(ranks) == ["[Ranks 0-11] node: 12 ranks, name=H100 / H200"]


def test_a_rank_that_wrote_nothing_is_placed_nowhere() -> None:
    ranks = [RankPlacement.from_record(rank, {}) for rank in range(9)]
    assert placement_lines(ranks[:1]) == ["unknown"]
    assert placement_lines(ranks) == ["[Ranks 0-8] unknown: 9 ranks, name=unknown"]
