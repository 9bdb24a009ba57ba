"""The page: one file, everything from runs escaped, terms explained, nothing from elsewhere."""

import builtins
import re
from html.parser import HTMLParser
from types import ModuleType
from typing import Any

import pytest
from markupsafe import Markup

from scalescope.errors import CannotRun
from scalescope.report.chapter import Chapter
from scalescope.report.glossary import GLOSSARY
from scalescope.report.render.cells import TermMarker, terms_in
from scalescope.report.render.page import page
from scalescope.report.section import Figure, ListedFinding, Panel, Section, Series, ShownCommand, Table

EVIL = '</script><script>alert(1)</script>" onmouseover="alert(2)\' &amp; {{ 7 * 7 }}'


class Reader(HTMLParser):
    """Remembers tags with their attributes, and the text of table cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def picture(name: str = "picture", text: str = "text") -> Figure:
    series = Series(label=text, x=(1.0, 2.0), y=(1.0, 2.0))
    panel = Panel(kind="lines", x_label=text, y_label=text, series=(series,), title=text)
    return Figure(name=name, title=text, alt=text, panels=(panel,), command=text, notes=(text,))


def chapter(text: str = "text", **others: Any) -> Chapter:
    table = Table(columns=(text, "number"), rows=((text, "1"),), left=frozenset((text,)))
    command = ShownCommand(label=text, argv=(text,))
    finding = ListedFinding(text=text, commands=(command,))
    section = Section(
        title=text,
        table=table,
        code=text,
        lines=(text,),
        findings=(finding,),
        commands=(command,),
        details=(text,),
    )
    values = {
        "name": "part",
        "title": text,
        "order": 1,
        "sections": (section,),
        "figures": (picture(text=text),),
    }
    return Chapter(**{**values, **others})  # type: ignore[arg-type]


def test_bars_of_blocks_are_drawn() -> None:
    rows = (("one", "████"), ("two", "−▒▒"), ("three", "░"), ("four", "█ is text"), ("five", ""))
    table = Table(columns=("name", ""), rows=rows, left=frozenset(("name",)))
    made = page((chapter(sections=(Section(table=table),)),), "text", "1 run")
    bars = [each for each in Reader(made).all("span") if (each.get("class") or "").startswith("bar")]
    assert [(bar["class"], bar["style"]) for bar in bars] == [
        ("bar full", "width: 4ch"), ("bar part", "width: 2ch"), ("bar part", "width: 1ch"),
    ]  # fmt: skip
    assert "−<span" in made and "█ is text" in made.replace("\u00a0", " ")


def test_nothing_from_a_run_becomes_a_tag_or_an_attribute() -> None:
    made = page((chapter(EVIL),), EVIL, 1)
    read, harmless = Reader(made), Reader(page((chapter(),), "text", 1))
    assert "{{ 7 * 7 }}" in made
    assert [tag for tag, _ in read.tags if tag == "script"] == ["script"]
    assert {name for _, attributes in read.tags for name in attributes} == {
        name for _, attributes in harmless.tags for name in attributes
    }


def test_control_characters_are_spelled_out_wherever_they_come_from() -> None:
    name = "host\x1b]0;x\x07\x00\u202e\x9b"
    text = page((chapter(name, figures=(picture(text=name),)),), name, 1)
    assert all(letter.isprintable() or letter in "\n\u00a0" for letter in text)
    assert r"host\x1b]0;x\x07\x00\u202e\x9b" in text


def test_every_figure_has_a_description_and_a_table_and_ids_are_there_once() -> None:
    read = Reader(page((chapter("a", figures=(picture("one"), picture("two"))),), "t", 1))
    assert [division["aria-label"] for division in read.all("div") if division.get("role") == "img"] == [
        "text",
        "text",
    ]
    assert len(read.all("table")) == 3
    assert len(read.all("figure")) == len(read.all("figcaption")) == 2
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_every_chapter_has_a_link() -> None:
    read = Reader(page((chapter(name="first", figures=()), chapter(name="second", figures=())), "t", 1))
    links = [link["href"] for link in read.all("a")]
    assert links[:2] == ["#first", "#second"] and set(links[2:]) == {"#glossary"}
    assert [section["id"] for section in read.all("section")] == ["first", "second", "glossary"]


def test_a_term_is_explained_once_in_every_chapter_but_not_in_code_or_figures() -> None:
    lines = ("two ranks", "three ranks")
    command = ShownCommand(label="try", argv=("scalescope", "--ranks", "ranks"))
    section = Section(lines=lines, commands=(command,), details=lines)
    chapters = tuple(
        chapter(name=name, sections=(section,), figures=(picture(name, "ranks"),)) for name in ("a", "b")
    )
    text = page(chapters, "t", 1)
    assert text.count("two <abbr tabindex") == 4  # once open and once folded, in both chapters
    assert "three ranks" in text and "<span>--ranks</span> <span>ranks</span></code>" in text
    for figure in re.findall(r"<figure>.*?</figure>", text, flags=re.DOTALL):
        assert "ranks" in figure and "<abbr" not in figure


def test_the_heading_of_a_column_is_explained() -> None:
    table = Table(columns=("efficiency",), rows=(("1",),))
    text = page((chapter(sections=(Section(table=table),), figures=()),), "t", "1 run")
    assert re.search(r'<button type="button"><abbr title="[^"<>]+">efficiency</abbr></button>', text)


def test_the_page_has_the_whole_glossary_its_language_and_fits_a_phone() -> None:
    text = page((), "A title", "2 runs")
    read = Reader(text)
    assert [name["id"] for name in read.all("dt")] == [f"term-{term.anchor}" for term in GLOSSARY]
    assert read.all("html")[0]["lang"] == "en"
    assert any(meta.get("name") == "viewport" for meta in read.all("meta"))
    assert "from 2 runs" in text


def test_the_page_loads_nothing() -> None:
    text = page((chapter(),), "t", 1)
    read = Reader(text)
    assert not read.all("link") and not read.all("img") and not read.all("iframe")
    assert "default-src 'none'" in text
    assert not re.search(r"(?:src|href)=\"(?!#)", text)
    assert "@import" not in text and "fetch(" not in text


def test_a_section_of_details_alone_is_folded_under_its_title() -> None:
    folded = chapter(sections=(Section(title="Evidence", details=("a fact",)),), figures=())
    assert "<summary>Evidence</summary><p>a fact</p>" in page((folded,), "t", 1)


def test_a_missing_jinja_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    _without("jinja2", monkeypatch)
    with pytest.raises(CannotRun, match=r"jinja2: pip install 'scalescope\[report\]'"):
        page((), "t", 1)


def _without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def importing(module: str, *others: Any, **named: Any) -> ModuleType:
        if module.partition(".")[0] == name:
            raise ImportError(name)
        return real(module, *others, **named)

    monkeypatch.setattr(builtins, "__import__", importing)


def test_code_keeps_its_lines() -> None:
    code = "for x in y:\n    print('<b>')"
    text = page((chapter(sections=(Section(title="Script", code=code),)),), "title", 1)
    assert "<code>for x in y:\n    print(&#39;&lt;b&gt;&#39;)</code></pre>" in text


MEANING = {term.name: term.meaning for term in GLOSSARY}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("4 ranks in two launches.", ["rank", "launch"]),
        ("Exposed communication", ["communication"]),
        ("weak scaling of a straggling rank", ["weak scaling", "stragglers"]),
        ("--world-size 4 at runs/launch/x, launch.py, rank=3, inputs, launch-to-launch", []),
        ("", []),
    ],
)
def test_terms_are_whole_words(text: str, names: list[str]) -> None:
    assert [term.name for _, _, term in terms_in(text)] == names


def test_a_term_is_explained_where_it_first_appears() -> None:
    mark = TermMarker(Markup)
    assert mark("a Rank & <b> ranks") == (
        f'a <abbr tabindex="0" title="{MEANING["rank"]}">Rank</abbr> &amp; &lt;b&gt; ranks'
    )
    assert mark("ranks") == "ranks"
    assert "<abbr" in TermMarker(Markup)("ranks")


def test_a_heading_is_explained_every_time_and_takes_no_focus_of_its_own() -> None:
    mark = TermMarker(Markup)
    headings = [str(mark.heading("efficiency")) for _ in range(2)]
    assert headings[0] == headings[1]
    assert "<abbr title=" in headings[0] and "tabindex" not in headings[0]


@pytest.mark.parametrize("text", ["<script>rank</script>", '"rank" onfocus="x"', "{{ rank }} %s {0}"])
def test_text_around_a_term_is_escaped(text: str) -> None:
    marked = str(TermMarker(Markup)(text))
    plain = marked.replace(f'<abbr tabindex="0" title="{MEANING["rank"]}">rank</abbr>', "rank")
    assert plain == str(Markup.escape(text)) != marked
