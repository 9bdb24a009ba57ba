"""Sections about traces: ranks, overlap, waiting, and traces that could not be read."""

import json
from pathlib import Path
from typing import Any

import pytest

from scalescope.report.section import Section
from scalescope.report.trace.sections import profile_json, profile_sections
from scalescope.results.run import Run
from tests.builders.results import make_result, make_trial
from tests.builders.traces import Event, cpu_step, cuda_step, event, steps_of, traced_run

TRIAL = make_trial(world_size=2)
EARLY = steps_of(cpu_step([(50, 90)]))
LATE = steps_of(cpu_step([(70, 90)]))


def section_of(path: Path, *traces: list[Event] | None, **result_options: Any) -> Section:
    (section,) = profile_sections(traced_run(path, TRIAL, dict(enumerate(traces)), **result_options))
    return section


def line_with(section: Section, part: str) -> str:
    (line,) = (text for text in section.lines if part in text)
    return line


def test_the_table_has_a_row_for_every_rank(tmp_path: Path) -> None:
    section = section_of(tmp_path, EARLY, LATE)
    assert section.title == "Trace · ddp, 2 ranks, batch 10 · ms per step"
    assert section.table is not None
    assert section.table.columns[:3] == ("rank", "step", "compute")
    assert section.table.rows == (
        ("0", "100", "65.0", "40.0", "20.0", "20.0", "0", "15.0"),
        ("1", "100", "65.0", "20.0", "0", "20.0", "0", "15.0"),
    )


def test_recorded_times_are_not_to_be_taken_for_timed_ones(tmp_path: Path) -> None:
    timed = make_result(TRIAL, [[0.1] * 10] * 2)
    (section,) = profile_sections(traced_run(tmp_path, TRIAL, {0: EARLY}, timed))
    assert section.lines[0].startswith("Traced steps take 120 ms, untraced ones 100 ms: ")
    assert not any("untraced" in line for line in section_of(tmp_path, EARLY).lines)


def test_overlap_by_the_trace_and_by_ddp_stand_side_by_side(tmp_path: Path) -> None:
    line = line_with(section_of(tmp_path, EARLY, EARLY, ddp=(0.04, 0.0236)), "hidden behind compute")
    assert line == (
        "50 % of communication is hidden behind compute; backward computes during 50 % of the time from the "
        "first bucket's start to the last bucket's end (DDP's counters: 59 %)."
    )


def test_a_wide_difference_from_ddps_counters_is_reported(tmp_path: Path) -> None:
    line = line_with(section_of(tmp_path, EARLY, EARLY, ddp=(0.04, 0.025)), "hidden behind compute")
    assert line.endswith("(DDP's counters: 62 %; the two differ widely, so check the trace).")


def test_without_ddps_counters_only_the_trace_is_reported(tmp_path: Path) -> None:
    assert "50 % of communication is hidden behind compute." in section_of(tmp_path, EARLY, EARLY).lines


def test_exchanges_that_begin_after_backward_can_hide_nothing(tmp_path: Path) -> None:
    remark = "No exchange starts before backward ends, so nothing is hidden."
    assert remark in section_of(tmp_path / "late", LATE, LATE, ddp=(0.02, 0.0)).lines
    assert remark not in section_of(tmp_path / "early", EARLY, EARLY, ddp=(0.02, 0.0)).lines


def test_the_most_exposed_exchange_is_named(tmp_path: Path) -> None:
    both = steps_of(cpu_step([(40, 50), (60, 90)]))
    assert line_with(section_of(tmp_path, both, both), "Most exposed") == (
        "Most exposed is exchange 2 of 2 (3.91 KiB): 20.0 of 30.0 ms exposed."
    )


def test_a_single_exchange_has_no_number(tmp_path: Path) -> None:
    assert line_with(section_of(tmp_path, EARLY, EARLY), "Most exposed") == (
        "Most exposed is the only exchange (3.91 KiB): 20.0 of 40.0 ms exposed."
    )
    late = line_with(section_of(tmp_path / "late", LATE, LATE), "Most exposed")
    assert late.endswith(": 20.0 ms, all of it exposed.")


def test_exchanges_that_hide_completely_are_not_called_exposed(tmp_path: Path) -> None:
    hidden = steps_of(cpu_step([(40, 60)]))
    assert not any("exposed" in line for line in section_of(tmp_path, hidden, hidden).lines)


def test_the_rank_that_comes_last_is_named(tmp_path: Path) -> None:
    assert line_with(section_of(tmp_path, EARLY, LATE), "transfer") == (
        "Exchanges of a step transfer data for 20.0 ms; rank 0 waits another 20.0 ms for its peers, rank 1 "
        "waits the least, so it is the last to arrive."
    )


def test_a_trace_without_a_late_rank_is_reported_as_such(tmp_path: Path) -> None:
    almost = steps_of(cpu_step([(51, 90)]))
    assert line_with(section_of(tmp_path, EARLY, almost), "transfer") == (
        "Exchanges of a step transfer data for 39.0 ms; all ranks wait for their peers about equally long."
    )


def test_a_single_rank_reports_no_waiting(tmp_path: Path) -> None:
    (section,) = profile_sections(traced_run(tmp_path, TRIAL, {1: LATE}))
    assert section.table is not None
    assert [row[0] for row in section.table.rows] == ["1"]
    assert not any("transfer" in line or "waits" in line for line in (*section.lines, *section.details))


def test_training_that_sends_nothing_has_nothing_to_hide(tmp_path: Path) -> None:
    without_exchange = steps_of(cpu_step(()))
    (section,) = profile_sections(traced_run(tmp_path, make_trial(world_size=1), {0: without_exchange}))
    idle, traces = section.lines
    assert idle == "Idle: 25.0 ms between operations, 10.0 ms waiting for samples."
    assert traces.startswith("Traces: ")


def test_idle_time_is_shown_by_cause(tmp_path: Path) -> None:
    on_gpu = [recorded_event for number in range(3) for recorded_event in cuda_step(number)]
    trial = TRIAL.replace(device="cuda", backend="nccl")
    (section,) = profile_sections(traced_run(tmp_path, trial, {0: on_gpu, 1: on_gpu}))
    line = line_with(section, "Idle")
    assert "5.00 ms waiting for the host to launch kernels" in line
    assert "2.00 ms waiting for samples" in line
    assert "10.0 ms queued behind another stream" in line


def test_details_list_kernels_exchanges_and_files(tmp_path: Path) -> None:
    details = section_of(tmp_path, EARLY, LATE).details
    assert details[0] == "62 % of compute: aten::mm (1 per step)"
    assert "exchange 1: all_reduce, 3.91 KiB, 30.0 ms, transfer 20.0 ms, exposed 20.0 ms" in details
    files = [line for line in details if line.startswith("trace of rank ")]
    assert [line.split(": traces/")[0] for line in files] == ["trace of rank 0", "trace of rank 1"]


def test_where_the_traces_are_is_always_shown(tmp_path: Path) -> None:
    line = line_with(section_of(tmp_path, EARLY, LATE), "Traces:")
    assert line.startswith(f"Traces: {tmp_path / 'traces'}; ")


def test_an_unknown_size_is_shown_as_missing(tmp_path: Path) -> None:
    unsized = [event("user_annotation", "gloo:send", (30, 90)), *cpu_step(())]
    section = section_of(tmp_path, steps_of(unsized), steps_of(unsized))
    assert line_with(section, "Most exposed").startswith("Most exposed is the only exchange: ")
    assert any(line.startswith("exchange 1: send, —, ") for line in section.details)


def test_an_unreadable_rank_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    section = section_of(tmp_path, EARLY, None)
    assert section.table is not None and len(section.table.rows) == 1
    assert section.lines[-2].startswith("Rank 1: traces/")


def test_if_no_rank_can_be_read_only_that_is_reported(tmp_path: Path) -> None:
    section = section_of(tmp_path, None, [])
    assert section.table is None and section.details == ()
    assert [line.partition(":")[0] for line in section.lines] == ["Rank 0", "Rank 1"]


def test_a_run_without_traces_has_no_section(tmp_path: Path) -> None:
    run = Run(path=tmp_path, environment={}, results=(make_result(TRIAL, [[0.1] * 10] * 2),), warnings=())
    assert (profile_sections(run), profile_json(run)) == ((), [])


def test_the_summary_holds_the_same_numbers(tmp_path: Path) -> None:
    (entry,) = profile_json(traced_run(tmp_path, TRIAL, {0: EARLY, 1: LATE}, ddp=(0.04, 0.01)))
    assert json.loads(json.dumps(entry)) == entry
    assert (entry["world_size"], entry["strategy"], entry["unread"]) == (2, "ddp", {})
    assert (entry["overlap"], entry["span_overlap"]) == pytest.approx((20 / 60, 0.25))
    assert (entry["ddp_overlap"], entry["transfer_s"]) == pytest.approx((0.25, 0.020))
    assert (entry["traced_step_s"], entry["untraced_step_s"]) == (pytest.approx(0.12), None)
    assert [rank["waiting_s"] for rank in entry["ranks"]] == pytest.approx([0.020, 0.0], abs=1e-12)
    assert [len(rank["steps"]) for rank in entry["ranks"]] == [2, 2]
    assert entry["ranks"][0]["steps"][0]["exposed_s"] == pytest.approx(0.020)
    assert entry["buckets"][0]["size_bytes"] == 4000
    assert entry["kernels"][0]["name"] == "aten::mm"


def test_the_summary_of_missing_traces_gives_the_reason(tmp_path: Path) -> None:
    (entry,) = profile_json(traced_run(tmp_path, TRIAL, {0: None, 1: None}))
    assert set(entry["unread"]) == set(entry["files"]) == {"0", "1"}
    assert (entry["ranks"], entry["buckets"], entry["kernels"], entry["overlap"]) == ([], [], [], None)
