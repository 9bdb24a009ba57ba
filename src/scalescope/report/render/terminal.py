"""Renders sections in a terminal, or as plain text where there is none."""

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Literal, TextIO

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from scalescope.report.render.clean_stream import CleanStream
from scalescope.report.render.text import body_lines, code_lines, detail_lines
from scalescope.report.section import Section, Table
from scalescope.results.printable import in_encoding, printable, printable_lines

_PIPED_WIDTH = 200  # a file has no width of its own; wide enough for every table
_UNLIMITED = 100_000


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


def _fitting(table: Table, target: Console, verbose: bool) -> RichTable:
    """The table, with optional columns left out one after another until it fits, or else wrapped."""
    unlimited = target.options.update(width=_UNLIMITED)  # measured in the page itself, every table fits
    hidden = set() if verbose else set(table.expert)
    for dropped in range(len(table.optional) + 1):
        for narrow in (False, True):
            drawn = _draw(table, target, hidden | set(table.optional[:dropped]), narrow=narrow)
            if Measurement.get(target, unlimited, drawn).maximum <= target.width:
                return drawn
    return _draw(table, target, hidden | set(table.optional), narrow=True, wrapped=True)


def _draw(
    table: Table, target: Console, left_out: set[str], *, narrow: bool, wrapped: bool = False
) -> RichTable:
    gap = (0, 1, 0, 0) if narrow else (0, 1)
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=gap)
    kept = [number for number, name in enumerate(table.columns) if name not in left_out]
    for number in kept:
        name = table.columns[number]
        side: Literal["left", "right"] = "left" if name in table.left else "right"
        drawn.add_column(_shown(name, target), justify=side, no_wrap=not wrapped, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(_shown(row[number], target)) for number in kept))
    return drawn
