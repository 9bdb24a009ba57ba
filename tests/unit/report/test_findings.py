"""Findings as they are read: what they cost, and lines to change beside commands to try."""

import json

from scalescope.diagnose.finding import Advice, Diagnosis, Finding
from scalescope.report.findings import findings_json, findings_section
from scalescope.report.render.markdown import markdown
from scalescope.report.render.text import plain_text

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
