"""The page: one self-contained HTML file of a report's chapters."""

import functools
import re
from importlib import resources
from typing import Any

from scalescope.errors import CannotRun
from scalescope.report.chapter import Chapter
from scalescope.report.glossary import GLOSSARY
from scalescope.report.numbers import counted
from scalescope.report.render.drawing import svg_for_page
from scalescope.report.render.terms import TermMarker
from scalescope.report.render.text import body_lines, detail_lines
from scalescope.results.printable import printable_lines
from scalescope.version import __version__


def page(chapters: tuple[Chapter, ...], title: str, runs: int) -> str:
    """The whole page; everything that comes from runs is escaped, and nothing is loaded from elsewhere.

    Control characters, such as those of a host's name, are spelled out.
    """
    environment, safe = _jinja()
    template = environment.from_string(
        resources.files("scalescope.report.render").joinpath("page.html.j2").read_text(encoding="utf-8")
    )
    # Drawn by us from numbers and escaped names, so it needs no escaping.
    pictures = {figure.name: safe(svg_for_page(figure)) for chapter in chapters for figure in chapter.figures}
    text: str = template.render(
        title=title,
        chapters=chapters,
        pictures=pictures,
        runs=counted(runs, "run"),
        version=__version__,
        glossary=GLOSSARY,
        term_marker=functools.partial(TermMarker, safe),
        body_lines=body_lines,
        detail_lines=detail_lines,
        unbroken=_unbroken,
    )
    return printable_lines(text)


def _unbroken(cell: str) -> str:
    """A number that is broken, where it must be, before its interval or share and nowhere else."""
    return re.sub(r" (?![\[(])", "\u00a0", cell)


def _jinja() -> tuple[Any, Any]:
    try:
        import jinja2
        import markupsafe
    except ImportError:
        raise CannotRun(
            "the page requires jinja2: pip install 'scalescope[report]', or use --format csv,tex,txt"
        ) from None
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined), markupsafe.Markup
