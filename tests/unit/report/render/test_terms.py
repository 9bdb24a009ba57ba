"""Terms in text: found as whole words, explained once, and never in the way of escaping."""

import pytest
from markupsafe import Markup

from scalescope.report.glossary import GLOSSARY
from scalescope.report.render.terms import TermMarker, terms_in

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
