"""Sections as plain text, Markdown and HTML for notebooks, and streams that clean what passes."""

import errno
import io
from html.parser import HTMLParser
from typing import TextIO, cast

import pytest

from scalescope.report.render.cells import TextLine, body_lines, plain_text
from scalescope.report.render.clean_stream import CleanStream
from scalescope.report.render.markdown import code, markdown
from scalescope.report.render.page import html_fragment
from scalescope.report.render.terminal import console
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


_EVIL = "<script>alert('x')</script>&\x1b\""
_EVERYWHERE = Section(
    title=_EVIL,
    table=Table(
        columns=("name", _EVIL, "p"),
        rows=((_EVIL, "1", "0.5"),),
        left=frozenset({"name"}),
        expert=frozenset({"p"}),
    ),
    code=f"a = 1\nb = {_EVIL!r}",
    lines=(_EVIL,),
    findings=(ListedFinding(text=_EVIL, commands=(ShownCommand(label=_EVIL, argv=("run", _EVIL)),)),),
    commands=(ShownCommand(label=_EVIL, argv=("run", _EVIL)),),
    details=(_EVIL,),
)


class _Tags(HTMLParser):
    """All tags of a page, and whether each that was opened is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _parsed(*sections: Section) -> _Tags:
    tags = _Tags()
    tags.feed(html_fragment(sections))
    tags.close()
    assert tags.open == []
    return tags


def test_text_from_elsewhere_stays_text_and_columns_for_experts_are_left_out() -> None:
    tags = _parsed(_EVERYWHERE)
    assert "script" not in tags.tags
    assert "\x1b" not in "".join(tags.texts)
    shown = _EVIL.replace("\x1b", "\\x1b")
    assert tags.texts.count(shown) >= 5  # title, heading, cell, line, detail
    assert "p" not in tags.texts and "0.5" not in tags.texts
    assert {"details", "summary", "pre"} <= tags.tags


def test_an_empty_section_is_nothing() -> None:
    assert html_fragment([Section()]) == '<div class="scalescope"></div>'


class Broken(io.StringIO):
    """A stream that takes so many writes and then no more."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self._left = writes

    def write(self, text: str) -> int:
        if not self._left:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._left -= 1
        return super().write(text)


def test_control_characters_are_spelled_out_and_lines_kept() -> None:
    target = io.StringIO()
    stream = CleanStream(target)
    text = "a\x1b[31m\tb\n\x9b\u202e\u2066\udcff\x7f\r\n"
    assert stream.write(text) == len(text)
    assert target.getvalue() == "a\\x1b[31m\tb\n\\x9b\\u202e\\u2066\\udcff\\x7f\\r\n"


def test_bytes_are_cleaned_too() -> None:
    target = io.StringIO()
    CleanStream(target).buffer.write(b"caf\xe9 \x1b[2J")
    assert target.getvalue() == "caf\\xe9 \\x1b[2J"


def test_only_a_console_adds_escape_sequences() -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"  # type: ignore[assignment]

        def isatty(self) -> bool:
            return True

    target = Terminal()
    page = console(cast(TextIO, CleanStream(target)))
    page._force_terminal = True
    page._color_system = None
    page.print("[bold]a\x1b[31mb[/bold]")
    assert "\x1b[31m" not in target.getvalue()
    assert "a\\x1b[31mb" in target.getvalue()


def test_an_output_that_breaks_is_remembered_and_left_alone() -> None:
    target = Broken(writes=1)
    stream = CleanStream(target)
    for text in ("kept\n", "lost\n", "lost too\n"):
        stream.write(text)
    stream.flush()
    assert target.getvalue() == "kept\n"
    assert stream.error is not None
    assert stream.error.errno == errno.ENOSPC


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError):
        CleanStream(io.StringIO()).write(b"")  # type: ignore[arg-type]
