"""Renders sections in a terminal, or as plain text where there is none."""

import os
import sys
from collections.abc import Iterable
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from scalescope.report.section import Section, Table

_PIPED_WIDTH = 140  # a file has no width of its own; wide enough for every table


def console(stream: TextIO | None = None) -> Console:
    """A console on `stream` (standard output) that keeps to the terminal's width and to NO_COLOR."""
    stream = stream or sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _PIPED_WIDTH
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def show(sections: Iterable[Section], target: Console, *, verbose: bool = False) -> None:
    """Print the sections with a blank line between them."""
    for section in sections:
        lines = (*section.lines, *(section.details if verbose else ()))
        if section.table is None and not lines:
            continue
        target.print()
        if section.title:
            target.print(Text(section.title, style="bold"))
        if section.table is not None:
            target.print(_fitting(section.table, target))
        for line in lines:
            target.print(Text(line), soft_wrap=True)


def _fitting(table: Table, target: Console) -> RichTable:
    """The table, with optional columns left out one after another until it fits."""
    left_out: set[str] = set()
    for column in (None, *table.optional):
        left_out |= {column} if column else set()
        drawn = _draw(table, left_out)
        if target.measure(drawn).minimum <= target.width:
            break
    return drawn


def _draw(table: Table, left_out: set[str]) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    kept = [number for number, name in enumerate(table.columns) if name not in left_out]
    for number in kept:
        name = table.columns[number]
        drawn.add_column(name, justify="left" if name in table.left else "right", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*(Text(row[number]) for number in kept))
    return drawn
