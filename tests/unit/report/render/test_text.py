"""The one conversion of sections into text, and what Markdown makes of it."""

import pytest

from scalescope.report.render.markdown import code, markdown
from scalescope.report.render.text import TextLine, body_lines, plain_text
from scalescope.report.section import ListedFinding, Section, ShownCommand, Table

TRY = ShownCommand(label="a larger batch: 64", argv=("scalescope", "tune", "x:", "y"), changes_job=True)
SECTION = Section(
    title="Title",
    table=Table(columns=("name", "n"), rows=(("long name", "1"),)),
    lines=("a line",),
    findings=(ListedFinding(text="first"), ListedFinding(text="second", commands=(TRY,))),
    commands=(ShownCommand(label="run", argv=("scalescope", "scale")),),
    details=("a detail",),
)


def test_findings_are_numbered_and_commands_are_kept_apart_from_their_labels() -> None:
    lines = body_lines(SECTION)
    assert [line.text for line in lines[:3]] == ["a line", "1. first", "2. second"]
    assert [(line.command, line.indented) for line in lines[3:]] == [
        ("scalescope tune x: y", True),
        ("scalescope scale", False),
    ]
    assert str(TextLine("try: ", "command", indented=True)) == "   try: command"


def test_a_command_that_changes_the_job_is_marked() -> None:
    same, other = (ShownCommand(label="a", argv=("b",), changes_job=changes) for changes in (False, True))
    lines = [body_lines(Section(commands=(command,)))[0].text for command in (same, other)]
    assert lines[0] == "a: " and "changes the job" in lines[1]


CODE = Section(title="Script", code="for x in y:\n    print('`<b>')\n\nend()", lines=("a note",))


def test_code_stays_as_it_is_and_comes_before_the_lines() -> None:
    assert plain_text([CODE]) == "Script\nfor x in y:\n    print('`<b>')\n\nend()\na note\n"


def test_code_is_fenced_in_markdown() -> None:
    text = markdown([CODE])
    assert "```python\nfor x in y:\n    print('`<b>')\n\nend()\n```" in text
    assert markdown([Section(code="'```'")]) == "````python\n'```'\n````\n"


def test_plain_text_has_everything_in_order_with_aligned_columns() -> None:
    lines = plain_text([SECTION, Section(lines=("end",))]).splitlines()
    assert lines[:4] == ["Title", "name       n", "long name  1", "a line"]
    assert lines[-4:] == ["a detail", "", "", "end"]


def test_commands_are_code_in_markdown() -> None:
    text = markdown([SECTION])
    assert "  - try: a larger batch: 64 (changes the job): `scalescope tune x: y`\n" in text
    assert "a detail" not in text


@pytest.mark.parametrize(
    ("text", "expected"), [("a b", "`a b`"), ("a\n`b`", "`` a `b` ``"), ("``", "``` `` ```")]
)
def test_backticks_do_not_end_code(text: str, expected: str) -> None:
    assert code(text) == expected
