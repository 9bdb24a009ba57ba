"""Renders sections in a terminal, or as plain text where there is none."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text

from scalescope.report.render.cells import body_lines, code_lines, detail_lines
from scalescope.report.render.clean_stream import CleanStream
from scalescope.report.section import Section, Table
from scalescope.results.printable import in_encoding, printable, printable_lines

_PIPED_WIDTH = 200  # a file has no width of its own; wide enough for every table


class Page(Console):
    """A console whose text holds no control characters but its own, and that a lost reader does not end."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable_lines(segment.text))

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(stream: TextIO | None = None) -> Console:
    """A console on `stream` (standard output) that keeps to the terminal's width and to NO_COLOR."""
    stream = stream or sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _PIPED_WIDTH
    target = stream.styled if isinstance(stream, CleanStream) else stream
    return Page(file=target, width=width, highlight=False, soft_wrap=False)


def show(sections: Iterable[Section], target: Console, *, verbose: bool = False) -> None:
    """Print the sections with a blank line between them."""
    for section in sections:
        details = detail_lines(section) if verbose else ()
        lines = (*code_lines(section), *body_lines(section), *details)
        if section.table is None and not lines:
            continue
        target.print()
        if section.title:
            target.print(Text(_shown(section.title, target), style="bold"))
        if section.table is not None:
            target.print(_fitting(section.table, target, verbose))
        for line in lines:
            target.print(Text(_shown(str(line), target)), soft_wrap=True)


def _shown(text: str, target: Console) -> str:
    """The text as the target can show it; replaced before tables are laid out, because lengths change."""
    return in_encoding(printable(text), target.encoding)


def _fitting(table: Table, target: Console, verbose: bool) -> RenderableType:
    """The table, with optional columns left out one after another until it fits, or else wrapped."""
    hidden = set() if verbose else set(table.expert)
    cells = [[_shown(cell, target) for cell in row] for row in (table.columns, *table.rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    kept: list[int] = []
    for dropped in range(len(table.optional) + 1):
        left_out = hidden | set(table.optional[:dropped])
        kept = [number for number, name in enumerate(table.columns) if name not in left_out]
        for gap in (3, 2):
            if sum(widths[number] + gap for number in kept) - gap <= target.width:
                sides = ["left" if table.columns[number] in table.left else "right" for number in kept]
                columns = [(number, widths[number], side) for number, side in zip(kept, sides, strict=True)]
                return _Rows(cells, columns, gap)
    return _wrapped(table, cells, kept)


class _Rows:
    """Rows that fit the page, one line each; rich's own table takes a hundred times as long for thousands."""

    def __init__(
        self, cells: Sequence[Sequence[str]], columns: Sequence[tuple[int, int, str]], gap: int
    ) -> None:
        self._cells, self._columns, self._gap = cells, columns, " " * gap

    def __rich_console__(self, page: Console, options: ConsoleOptions) -> Iterator[Segment]:
        heading, *rows = self._cells
        title = self._line(heading)
        yield Segment(title, Style(bold=True))
        yield Segment("\n" + ("-" if options.ascii_only else "─") * cell_len(title))
        for row in rows:
            yield Segment("\n" + self._line(row))
        yield Segment.line()

    def _line(self, row: Sequence[str]) -> str:
        padded = []
        for number, width, side in self._columns:
            space = " " * (width - cell_len(row[number]))
            padded.append(row[number] + space if side == "left" else space + row[number])
        return self._gap.join(padded)


def _wrapped(table: Table, cells: Sequence[Sequence[str]], kept: Sequence[int]) -> RichTable:
    """A table that is wider than the page: long cells take several lines."""
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    heading, *rows = cells
    for number in kept:
        side: Literal["left", "right"] = "left" if table.columns[number] in table.left else "right"
        drawn.add_column(heading[number], justify=side, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(row[number]) for number in kept))
    return drawn
