"""Sections as Markdown for a pull request; names from elsewhere cannot become markup."""

import html
import re
from collections.abc import Iterable

from scalescope.report.render.cells import TextLine, body_lines
from scalescope.report.section import Section, Table
from scalescope.results.printable import printable

_MARKUP = str.maketrans({letter: f"\\{letter}" for letter in "\\`*_[]|~#$"})


def escaped(text: str) -> str:
    """The text as it reads, in one line: no table cell, tag, link, emphasis or mention comes of it."""
    return html.escape(printable(" ".join(text.split())).translate(_MARKUP), quote=False).replace(
        "@", "&#64;"
    )


def markdown(sections: Iterable[Section]) -> str:
    """Titles as headings, tables as tables, lines as a list where there are several."""
    parts = []
    for section in sections:
        if section.title:
            parts.append(f"### {escaped(section.title)}")
        if section.table is not None:
            parts.append(table_text(section.table))
        if section.code:
            parts.append(_block(section.code))
        lines = body_lines(section)
        mark = "- " if len(lines) > 1 else ""
        if lines:
            parts.append("\n".join(f"{'  ' * line.indented}{mark}{_line(line)}" for line in lines))
    return "\n\n".join(parts) + "\n"


def _block(text: str) -> str:
    """A piece of Python between fences longer than any run of backticks in it."""
    lines = [printable(line) for line in text.splitlines()]
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return "\n".join((f"{fence}python", *lines, fence))


def _line(line: TextLine) -> str:
    return f"{escaped(line.text)} {code(line.command)}" if line.command else escaped(line.text)


def code(text: str) -> str:
    """The text as code in one line; a fence longer than any run of backticks keeps it together."""
    words = printable(" ".join(text.split()))
    fence = "`" * (1 + max(map(len, re.findall("`+", words)), default=0))
    return f"{fence} {words} {fence}" if "`" in words else f"{fence}{words}{fence}"


def table_text(table: Table) -> str:
    """A table as GitHub and others read it."""
    rules = [":---" if name in table.left else "---:" for name in table.columns]
    rows = [table.columns, *table.rows]
    head, *body = [f"| {' | '.join(map(escaped, row))} |" for row in rows]
    return "\n".join((head, f"| {' | '.join(rules)} |", *body))
