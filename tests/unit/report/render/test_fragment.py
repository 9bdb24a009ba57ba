"""Sections for notebooks: everything from elsewhere is escaped, and nothing runs."""

from html.parser import HTMLParser

from scalescope.report.render.fragment import html_fragment
from scalescope.report.section import ListedFinding, Section, ShownCommand, Table

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


def test_text_from_elsewhere_stays_text() -> None:
    tags = _parsed(_EVERYWHERE)
    assert "script" not in tags.tags
    assert "\x1b" not in "".join(tags.texts)
    shown = _EVIL.replace("\x1b", "\\x1b")
    assert tags.texts.count(shown) >= 5  # title, heading, cell, line, detail


def test_columns_for_experts_are_left_out_and_details_folded() -> None:
    tags = _parsed(_EVERYWHERE)
    assert "p" not in tags.texts and "0.5" not in tags.texts
    assert {"details", "summary", "pre"} <= tags.tags


def test_an_empty_section_is_nothing() -> None:
    assert html_fragment([Section()]) == '<div class="scalescope"></div>'
