"""Table, sentence and data of one rank's step."""

import dataclasses
import json

import pytest

from scalescope.analysis.events import Event, StepEvents
from scalescope.analysis.scaling.waterfall import DELIVERED
from scalescope.analysis.training.step_waterfall import (
    BACKWARD_AND_EXCHANGE,
    FORWARD,
    IDLE_INPUT,
    IDLE_SYNC,
    INPUT,
    TERMS,
)
from scalescope.report.chapters.step import IDEAL, STEP_COLOURS, step_panel
from scalescope.report.chapters.waterfall import SEGMENT_COLOURS
from scalescope.report.training.step_waterfall import (
    step_section,
    step_sections,
    step_sentence,
    step_waterfall_json,
)
from tests.builders.steps import WAITING_MS, make_facts, make_step

from ..conftest import Render


def test_the_rows_add_up_to_the_step_and_zero_is_left_out() -> None:
    (section,) = step_section(make_facts(WAITING_MS, ideal_ms=1.15))
    assert section.table is not None
    *parts, total = section.table.rows
    shown = {row[0]: float(row[2]) for row in parts}
    assert shown == {name: ms for name, ms in WAITING_MS.items() if ms}
    assert total[0] == "total" and float(total[2]) == pytest.approx(sum(shown.values()))
    assert [row[3] for row in parts] == ["4 %", "9 %", "2 %", "85 %"]


def test_the_sentence_names_compute_and_the_largest_loss() -> None:
    facts = make_facts(WAITING_MS)
    assert facts.waterfall is not None
    assert step_sentence(facts.waterfall) == (
        "A step takes 11.5 ms; 1.70 ms of it is compute; the GPU waits 9.80 ms after synchronizations."
    )


def test_a_step_of_compute_alone_has_no_loss_to_name() -> None:
    facts = make_facts({FORWARD: 10.0, INPUT: 0.01})
    assert facts.waterfall is not None
    assert step_sentence(facts.waterfall) == "A step takes 10.0 ms; 10.0 ms of it is compute."


def test_the_ideal_is_a_share_of_the_step_or_says_why_it_is_unknown() -> None:
    (known,) = step_section(make_facts(WAITING_MS, ideal_ms=1.15))
    assert known.lines[0].startswith("Ideal: 1.15 ms") and "10 % of the step" in known.lines[0]
    (tiny,) = step_section(make_facts(WAITING_MS, ideal_ms=0.005))
    assert tiny.lines[0].endswith("less than 1 % of the step.")
    (unknown,) = step_section(make_facts(WAITING_MS))
    assert unknown.lines[0] == (
        "Ideal: unknown, because the speed of a matrix product in fp32 was not measured."
    )


def test_how_a_part_was_measured_is_for_experts(render: Render) -> None:
    sections = step_section(make_facts(WAITING_MS))
    assert "measured by" not in render(sections)
    assert "measured by" in render(sections, verbose=True)


def test_of_many_configurations_the_slowest_is_shown_unless_all_are_wanted() -> None:
    steps = [make_facts({FORWARD: ms}, batch_size=batch) for batch, ms in ((10, 1.0), (11, 9.0), (12, 2.0))]
    titles = [section.title or "" for section in step_sections(steps) if section.table]
    assert len(titles) == 1 and "batch 11: A step takes 9.00 ms" in titles[0]
    assert len([section for section in step_sections(steps, every=True) if section.table]) == 3
    assert len([section for section in step_sections(steps[:2]) if section.table]) == 2


def test_nothing_is_shown_of_a_step_whose_parts_are_unknown() -> None:
    assert step_sections([make_facts(None)]) == ()


def test_the_data_has_every_term_in_seconds() -> None:
    facts = make_facts(WAITING_MS, ideal_ms=1.15)
    assert facts.waterfall is not None
    stored = json.loads(json.dumps(step_waterfall_json(facts.waterfall)))
    assert stored["ideal_step_time_s"] == pytest.approx(0.00115)
    assert sum(term["time_s"] for term in stored["terms"]) == pytest.approx(stored["step_time_s"])
    sync = next(term for term in stored["terms"] if term["name"] == IDLE_SYNC)
    assert sync["measured_by"] == "trace"
    assert sync["ci95_time_s"] == pytest.approx([0.9 * 0.0098, 1.1 * 0.0098])


def test_the_figure_has_the_same_parts_and_the_ideal_of_bars_that_have_one() -> None:
    trial = make_facts(WAITING_MS).trial
    steps = [make_step(trial, WAITING_MS, ideal_ms=1.15), make_step(trial, {FORWARD: 3.0})]
    panel = step_panel(steps, ("a", "b"))
    drawn = {(part.label, x): y for part in panel.series for x, y in zip(part.x, part.y, strict=True)}
    assert drawn[IDLE_SYNC, 0.0] == pytest.approx(9.8)
    assert drawn[FORWARD, 1.0] == pytest.approx(3.0)
    assert [part.x for part in panel.series if part.label == IDEAL] == [(0.0,)]
    assert {label for label, _ in drawn} <= {*STEP_COLOURS, IDEAL}


def test_every_part_has_its_look_which_no_other_part_and_nothing_that_ranks_add_has() -> None:
    assert tuple(STEP_COLOURS) == TERMS
    assert STEP_COLOURS[INPUT] == STEP_COLOURS[IDLE_INPUT]  # a step has one of them
    looks = [STEP_COLOURS[name] for name in TERMS if name != IDLE_INPUT]
    assert len(set(looks)) == len(looks)
    assert set(looks) & set(SEGMENT_COLOURS.values()) == {SEGMENT_COLOURS[DELIVERED]}


def test_backward_with_communication_is_drawn_next_to_compute() -> None:
    facts = make_facts({INPUT: 4.0, FORWARD: 2.0, BACKWARD_AND_EXCHANGE: 5.0})
    assert facts.waterfall is not None
    panel = step_panel([facts.waterfall], ("a",))
    assert [part.label for part in panel.series] == [FORWARD, BACKWARD_AND_EXCHANGE, INPUT]


def test_events_are_told_with_their_length_and_the_plain_step_beside_them() -> None:
    facts = make_facts({FORWARD: 80.0, "evaluation every 50 steps": 9.0})
    assert facts.waterfall is not None
    event = Event(kind="evaluation", period=50, steps=((49, 99),), length_s=0.45, cost_s=0.009)
    events = StepEvents(plain_s=0.08, events=(event,))
    waterfall = dataclasses.replace(facts.waterfall, events=events)
    (section,) = step_section(dataclasses.replace(facts, waterfall=waterfall))
    assert section.title.endswith("evaluation every 50 steps takes 9.00 ms of it.")
    assert section.lines[0] == (
        "Plain step: 80.0 ms. Evaluation every 50 steps: 450 ms, which is 9.00 ms per step (10 %)."
    )
    stored = json.loads(json.dumps(step_waterfall_json(waterfall)))
    assert stored["plain_step_time_s"] == 0.08
    assert stored["events"] == [
        {
            "name": "evaluation every 50 steps",
            "kind": "evaluation",
            "period_steps": 50,
            "occurrences": 2,
            "time_s": 0.45,
            "time_per_step_s": 0.009,
        }
    ]
    assert step_waterfall_json(facts.waterfall)["events"] == []
