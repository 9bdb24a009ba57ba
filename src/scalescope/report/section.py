"""What reports consist of, as data: sections, tables and figures."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scalescope.report.numbers import MISSING, data_size, percent, significant

# ---- Section: a piece of a report as data; renderers decide how it looks


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells as text. Columns are right-aligned unless named in `left`; those in `optional` may be left
    out, one after another as named, where the page is too narrow for all; a terminal shows those in
    `expert` on request (-v)."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[str] = frozenset()
    optional: tuple[str, ...] = ()
    expert: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCommand:
    """A command that a reader can run, and what it is for."""

    label: str
    argv: tuple[str, ...] = ()  # empty where there is only the label to say
    changes_job: bool = False  # it trains something else, such as another batch size

    @property
    def command(self) -> str:
        """What to type into a shell."""
        return shlex.join(self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFinding:
    """A finding in one sentence, which may begin with its name, and the commands to try; renderers number
    them."""

    text: str
    name: str = ""
    commands: tuple[ShownCommand, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, a table, a piece of Python, lines of text, findings and commands, in that order; each may be
    missing."""

    title: str | None = None
    table: Table | None = None
    code: str = ""
    lines: tuple[str, ...] = ()
    findings: tuple[ListedFinding, ...] = ()
    commands: tuple[ShownCommand, ...] = ()
    details: tuple[str, ...] = ()  # shown on request (-v)


Tone = Literal["good", "fair", "poor", "uncertain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigure:
    """A number in large type: `1.60×`, and what it is in a few words."""

    value: str
    label: str
    tone: Tone | None = None  # a colour beside the words; None where there is nothing to judge


# ---- Figure: a picture as data. One renderer draws it for paper and page; its table is made of it too


Kind = Literal["lines", "bars", "stacked", "forest", "distribution", "timeline"]
Role = Literal["data", "ideal", "reference", "not significant"]
_MOST_ROWS = 200  # of a table behind a figure; results.json has everything


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values with a name. A timeline has starts and ends in one of the panel's rows; its name is the kind
    of work. A distribution has shares and values."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    role: Role = "data"
    colour: int | None = None  # a fixed number, where it must look the same in every figure
    begin: tuple[float, ...] = ()  # of a stack's segments: their left ends; else they follow each other
    row: int = 0  # of a timeline: which of the panel's names it belongs to
    is_band: bool = False  # of lines: intervals are a band around the line, not bars at its points
    in_legend: bool = True  # False for a line drawn again without a name; it has no column in the table

    def interval(self, index: int) -> tuple[float, float] | None:
        """The interval of a value, where it has one."""
        if not self.low or not self.high:
            return None
        low, high = self.low[index], self.high[index]
        return None if low is None or high is None else (low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes. `names` are the categories of bars and rows, numbered from 0 in the series' `x`."""

    kind: Kind
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    names: tuple[str, ...] = ()
    x_log: bool = False
    x_in_bytes: bool = False  # ticks are powers of two, with units of 1024
    y_log: bool = False
    title: str = ""

    def table(self) -> Table:
        """The numbers behind the picture."""
        return _TABLES[self.kind](self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A picture of one panel or several, with its title and notes."""

    name: str  # of its files
    title: str
    alt: str  # a description for readers who cannot see the picture
    panels: tuple[Panel, ...]
    command: str = ""  # the command that repeats the measurement
    notes: tuple[str, ...] = ()


def _table_of_lines(panel: Panel) -> Table:
    shown = [drawn for drawn in panel.series if drawn.in_legend]
    places = sorted({x for series in shown for x in series.x})[:_MOST_ROWS]
    rows = []
    for x in places:
        cells = [_cell(series, series.x.index(x)) if x in series.x else MISSING for series in shown]
        rows.append((shown_place(panel, x), *cells))
    first = "name" if panel.names else panel.x_label
    return Table(
        columns=(first, *(series.label for series in shown)), rows=tuple(rows), left=frozenset((first,))
    )


def _table_of_forest(panel: Panel) -> Table:
    rows = [
        (panel.names[int(y)], drawn.label, shown_value(x, drawn.interval(index)))
        for drawn in panel.series
        for index, (x, y) in enumerate(zip(drawn.x, drawn.y, strict=True))
    ]
    return Table(
        columns=("name", "group", panel.x_label), rows=tuple(rows), left=frozenset(("name", "group"))
    )


def _table_of_distribution(panel: Panel) -> Table:
    shares = panel.series[0].x if panel.series else ()
    columns = ("name", *(percent(share) for share in shares))
    rows = tuple(
        (drawn.label, *(significant(value) for value in drawn.y)) for drawn in panel.series[:_MOST_ROWS]
    )
    return Table(columns=columns, rows=rows, left=frozenset(("name",)))


def _table_of_timeline(panel: Panel) -> Table:
    rows = [
        (panel.names[drawn.row], drawn.label, significant(start), significant(end))
        for drawn in panel.series
        for start, end in zip(drawn.x, drawn.y, strict=True)
    ]
    columns = ("row", "kind", f"from, {panel.x_label}", "to")
    return Table(columns=columns, rows=tuple(rows[:_MOST_ROWS]), left=frozenset(("row", "kind")))


def shown_place(panel: Panel, x: float) -> str:
    """A value on the axis as a reader sees it: its name, size or number."""
    if panel.names:
        return panel.names[int(x)].replace("\n", ", ")
    if panel.x_in_bytes:
        return data_size(x)
    return f"{x:,.0f}" if x == int(x) else significant(x, 4)


def _cell(series: Series, index: int) -> str:
    return shown_value(series.y[index], series.interval(index))


def shown_value(value: float, interval: tuple[float, float] | None) -> str:
    """`82.2 [81.9, 82.5]`: a value with its interval, where it has one."""
    text = significant(value, 4)
    return (
        text if interval is None else f"{text} [{significant(interval[0], 4)}, {significant(interval[1], 4)}]"
    )


_TABLES = {
    "lines": _table_of_lines,
    "bars": _table_of_lines,
    "stacked": _table_of_lines,
    "forest": _table_of_forest,
    "distribution": _table_of_distribution,
    "timeline": _table_of_timeline,
}


def quantiles(values: Sequence[float], shares: Sequence[float]) -> tuple[float, ...]:
    """The values below which these shares lie."""
    ordered = sorted(values)
    last = len(ordered) - 1
    values_below = []
    for share in shares:
        position = share * last
        low = int(position)
        high = min(low + 1, last)
        values_below.append(ordered[low] + (ordered[high] - ordered[low]) * (position - low))
    return tuple(values_below)
