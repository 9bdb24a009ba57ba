"""Sections as a fragment of HTML for notebooks: escaped text, no script, nothing from elsewhere."""

import html
from collections.abc import Iterable

from scalescope.report.render.text import TextLine, body_lines, detail_lines
from scalescope.report.section import Section, Table
from scalescope.results.printable import printable

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
