"""Sections as lines of plain text: the one conversion that all other renderers build on."""

from collections.abc import Iterable
from dataclasses import dataclass

from scalescope.report.section import Section, ShownCommand, Table
from scalescope.results.printable import printable

_INDENT = "   "


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of text; what follows it as a command is kept apart, so that it can be set as code."""

    text: str
    command: str = ""
    indented: bool = False

    def __str__(self) -> str:
        return f"{_INDENT if self.indented else ''}{self.text}{self.command}"


def body_lines(section: Section) -> tuple[TextLine, ...]:
    """Everything below the table that is always shown."""
    lines = [TextLine(line) for line in section.lines]
    for number, finding in enumerate(section.findings, start=1):
        lines.append(TextLine(f"{number}. {finding.text}"))
        lines += [command_line(command, _prefix(command), indented=True) for command in finding.commands]
    lines += [command_line(command) for command in section.commands]
    return tuple(lines)


def _prefix(command: ShownCommand) -> str:
    """A command is tried; without one, the label is what to change."""
    return "try: " if command.argv else "change: "


def code_lines(section: Section) -> tuple[TextLine, ...]:
    """The piece of Python, line by line, to be copied as it is."""
    return tuple(map(TextLine, section.code.splitlines()))


def detail_lines(section: Section) -> tuple[TextLine, ...]:
    """What is shown on request."""
    return tuple(TextLine(line) for line in section.details)


def command_line(command: ShownCommand, prefix: str = "", *, indented: bool = False) -> TextLine:
    """What a command is for, and the command as a shell takes it: the one place that makes it text."""
    changed = " (changes the job)" if command.changes_job else ""
    colon = ": " if command.argv else ""
    return TextLine(f"{prefix}{command.label}{changed}{colon}", command.command, indented)


def plain_text(sections: Iterable[Section]) -> str:
    """Sections with their details as a text file, with a blank line between them."""
    lines: list[str] = []
    for section in sections:
        lines.append(section.title or "")
        if section.table is not None:
            lines += _table_lines(section.table)
        shown = (*code_lines(section), *body_lines(section), *detail_lines(section))
        lines += [str(line) for line in shown]
        lines.append("")
    return "\n".join(map(printable, lines)).strip() + "\n"


def _table_lines(table: Table) -> list[str]:
    rows = [table.columns, *table.rows]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
