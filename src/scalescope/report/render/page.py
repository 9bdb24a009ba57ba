"""The page around chapters, and a part of it for notebooks."""

import functools
import html
import re
from collections.abc import Iterable
from importlib import resources
from typing import Any

from scalescope.errors import CannotRun
from scalescope.report.chapter import Chapter
from scalescope.report.glossary import GLOSSARY
from scalescope.report.render.cells import TermMarker, TextLine, body_lines, detail_lines
from scalescope.report.render.svg import MARKERS, SWITCHES, svg_for_page
from scalescope.report.section import Section, Table
from scalescope.results.printable import printable, printable_lines
from scalescope.version import __version__

# ---- Sections as a fragment of HTML for notebooks: escaped text, no script, nothing from elsewhere


_LEFT, _RIGHT = ' style="text-align:left"', ' style="text-align:right"'


def html_fragment(sections: Iterable[Section]) -> str:
    """Titles, tables, lines and commands, in the order of the terminal; details are folded."""
    return f'<div class="scalescope">{"".join(map(_section, sections))}</div>'


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def _section(section: Section) -> str:
    parts = [f"<h4>{_escaped(section.title)}</h4>"] if section.title else []
    if section.table is not None:
        parts.append(_table(section.table))
    if section.code:
        code = "\n".join(map(_escaped, section.code.splitlines()))
        parts.append(f"<pre><code>{code}</code></pre>")
    parts += map(_line, body_lines(section))
    if details := "".join(map(_line, detail_lines(section))):
        parts.append(f"<details><summary>Details</summary>{details}</details>")
    return "".join(parts)


def _line(line: TextLine) -> str:
    command = f"<code>{_escaped(line.command)}</code>" if line.command else ""
    indent = ' style="margin-left:1.5em"' if line.indented else ""
    return f"<p{indent}>{_escaped(line.text)}{command}</p>"


def _table(table: Table) -> str:
    """All columns but those that a terminal shows on request only."""
    kept = [number for number, name in enumerate(table.columns) if name not in table.expert]
    styles = [_LEFT if name in table.left else _RIGHT for name in table.columns]
    head = "".join(f"<th{styles[number]}>{_escaped(table.columns[number])}</th>" for number in kept)
    rows = "".join(
        f"<tr>{''.join(f'<td{styles[number]}>{_escaped(row[number])}</td>' for number in kept)}</tr>"
        for row in table.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


# ---- The page: one self-contained HTML file of a report's chapters


def page(chapters: tuple[Chapter, ...], title: str, source: str) -> str:
    """The whole page, made from `1 run` or `8 traces`: everything from them is escaped, and nothing
    is loaded from elsewhere.

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
        markers=MARKERS,
        switches=range(SWITCHES),
        source=source,
        version=__version__,
        glossary=GLOSSARY,
        term_marker=functools.partial(TermMarker, safe),
        body_lines=body_lines,
        detail_lines=detail_lines,
        unbroken=_unbroken,
        bar_of=_bar_of,
    )
    return printable_lines(text)


def _bar_of(cell: str) -> tuple[str, int, str] | None:
    """The sign, length and kind of a bar that a terminal draws with blocks; None for another cell."""
    found = re.fullmatch(r"(−?)((█+)|▒+|░+)", cell)
    return found and (found[1], len(found[2]), "full" if found[3] else "part")


def _unbroken(cell: str) -> str:
    """A number that is broken, where it must be, before its interval or share and nowhere else."""
    return re.sub(r" (?![\[(])", "\u00a0", cell)


def _jinja() -> tuple[Any, Any]:
    try:
        import jinja2
        import markupsafe
    except ImportError:
        raise CannotRun(
            "the page requires jinja2: pip install 'scalescope[report]', or report --format csv,tex,txt"
        ) from None
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined), markupsafe.Markup
