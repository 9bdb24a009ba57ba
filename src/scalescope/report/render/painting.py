"""Paints the panels of figures: lines, bars, stacks, intervals, distributions and timelines."""

import math
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from scalescope.report.numbers import data_size, shortened, significant
from scalescope.report.section import Panel, Series

# Distinguishable with colour blindness (Okabe and Ito 2008) and in grey; markers and dashes differ as well.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#6e6e2a")
INK, FAINT, GRID, PAPER = "#1b1f24", "#6b727b", "#d9dde2", "#ffffff"
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)))
_HATCHES = ("", "///", "\\\\\\", "xxx", "---", "|||", "++", "//")  # of lines alone: dots make large files
_PANEL_HEIGHT_IN = 2.9
_ROW_IN = 0.24
_FEW_SIZES, _FEW_COLUMNS = 5, 4
_FEW_VALUES = 8  # on an axis, each with a tick


def height_of(panel: Panel, room_in: float) -> float:
    rows = len(panel.names)
    if panel.kind == "timeline":
        return 1.0 + 0.3 * max(1, rows)
    if panel.kind in ("forest", "stacked") or (panel.kind == "bars" and not fits_below(panel, room_in)):
        return max(1.6, 1.1 + _ROW_IN * rows)
    if panel.kind == "distribution":
        return max(1.6, 0.9 + _ROW_IN * len(panel.series))
    return _PANEL_HEIGHT_IN


def _lines(axes: Any, panel: Panel, room_in: float) -> None:
    for number, drawn in enumerate(panel.series):
        style = _style_of(drawn, number)
        errors = _errors(drawn)
        label = clean(drawn.label) if drawn.in_legend else None
        if errors is not None and drawn.is_band:
            axes.fill_between(drawn.x, drawn.low, drawn.high, color=style["color"], alpha=0.15, linewidth=0)
            axes.plot(drawn.x, drawn.y, label=label, **style)
        elif errors is not None:
            axes.errorbar(drawn.x, drawn.y, yerr=errors, label=label, capsize=2.5, elinewidth=0.9, **style)
        else:
            axes.plot(drawn.x, drawn.y, label=label, **style)
    x_log, y_log = has_log_axes(panel)
    _scale_x(axes, panel, log=x_log)
    _scale_y(axes, panel, log=y_log)
    if panel.names:
        _name_columns(axes, panel)


def has_log_axes(panel: Panel) -> tuple[bool, bool]:
    """Whether x and y are logarithmic, as asked and as values allow. With a sloping ideal both are or none
    is: else N times as much on N ranks would not be a straight line."""
    values = [y for drawn in panel.series for y in drawn.y]
    positive = min(values, default=0.0) > 0.0
    if panel.x_log and any(drawn.role == "ideal" and len(set(drawn.y)) > 1 for drawn in panel.series):
        return positive, positive
    return panel.x_log, panel.y_log and positive and max(values) >= 2.0 * min(values)


def _scale_x(axes: Any, panel: Panel, *, log: bool) -> None:
    """A few values on a logarithmic axis each have a tick."""
    values = sorted({x for drawn in panel.series for x in drawn.x})
    if log and values:
        axes.set_xscale("log", base=2)
        if panel.x_in_bytes:
            axes.set_xticks(doublings(values[0], values[-1]))
        elif len(values) <= _FEW_VALUES:
            axes.set_xticks(values)
        axes.minorticks_off()
    elif all(x == int(x) for x in values):
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    if panel.x_in_bytes:
        axes.xaxis.set_major_formatter(lambda value, _: size_text(value))
    else:
        axes.xaxis.set_major_formatter(plain)


def size_text(size_bytes: float) -> str:
    """A tick's size: `8 KiB`."""
    return re.sub(r"\.0+ ", " ", data_size(size_bytes))


def doublings(least: float, most: float) -> list[float]:
    """A few sizes from the least on, each the same number of doublings after the one before."""
    count = max(0, round(math.log2(most / least)))
    step = max(1, -(-count // _FEW_SIZES))
    return [least * 2.0**power for power in range(0, count + 1, step)]


def _scale_y(axes: Any, panel: Panel, *, log: bool = False) -> None:
    """Logarithmic, or from zero."""
    values = [y for drawn in panel.series for y in drawn.y]
    if log:
        _log_ticks(axes, axes.yaxis, "y", max(values) / min(values))
    elif values and min(values) >= 0.0:
        axes.set_ylim(0, max(axes.get_ylim()[1], 1.05 * max(values)) or None)
    axes.yaxis.set_major_formatter(plain)


def _log_ticks(axes: Any, axis: Any, which: str, ratio: float) -> None:
    """Ticks of 10, with some between where the values leave few."""
    from matplotlib.ticker import LogLocator, NullFormatter

    getattr(axes, f"set_{which}scale")("log")
    between: tuple[float, ...] = (1,) if ratio >= 100.0 else (1, 2, 3, 5)
    if ratio < 5.0:
        between = (1, 1.5, 2, 3, 4, 5, 7) if ratio >= 2.5 else (1, 1.2, 1.4, 1.7, 2, 2.5, *range(3, 10))
    axis.set_major_locator(LogLocator(base=10, subs=between))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(plain)


def plain(value: float, position: object = None) -> str:
    """A tick's number without powers of ten."""
    text = significant(abs(value), 12) if abs(value) < 1.0 else f"{abs(value):,.12g}"
    return f"−{text}" if value < 0.0 else text


def _bars(axes: Any, panel: Panel, room_in: float) -> None:
    """Columns, or rows where the names below columns would touch."""
    upright = fits_below(panel, room_in)
    wide = 0.8 / max(1, len(panel.series))
    for number, drawn in enumerate(panel.series):
        positions = [x - 0.4 + wide * (number + 0.5) for x in drawn.x]
        (axes.bar if upright else axes.barh)(
            positions, drawn.y, wide * 0.92, label=clean(drawn.label), color=_colour(number), capsize=2,
            hatch=_hatch(number), edgecolor=PAPER, linewidth=0.4,
            error_kw={"elinewidth": 0.9, "ecolor": INK}, **{"yerr" if upright else "xerr": _errors(drawn)},
        )  # fmt: skip
    if upright:
        _name_columns(axes, panel)
        margin = max(0.6, (_FEW_COLUMNS - len(panel.names)) / 2)  # or one column would fill the picture
        axes.set_xlim(-margin, len(panel.names) - 1 + margin)
        axes.grid(visible=False, axis="x")
        _scale_y(axes, panel)
    else:
        _name_rows(axes, panel.names, room_in)
        axes.xaxis.set_major_formatter(plain)


def fits_below(panel: Panel, room_in: float) -> bool:
    """Whether the names fit below their columns without touching."""
    longest = max((len(line) for name in panel.names for line in name.splitlines()), default=0)
    return 0.075 * longest * len(panel.names) < room_in - 0.6


def _name_columns(axes: Any, panel: Panel) -> None:
    names = ["\n".join(clean(line) for line in name.splitlines()) for name in panel.names]
    axes.set_xticks(range(len(names)), names)


def _name_rows(axes: Any, names: Sequence[str], room_in: float) -> None:
    """Names left of their rows, the first on top; they leave more than half of the room to the picture."""
    names = [name.replace("\n", ", ") for name in names]
    most = int(room_in * 0.45 / 0.075)
    if all(len(name) <= most for name in names):
        axes.set_yticks(range(len(names)), [clean(name) for name in names])
    else:
        most = int(most * 1.2)
        folded = [textwrap.wrap(clean(name, 2 * most), most, max_lines=2, placeholder="…") for name in names]
        axes.set_yticks(range(len(names)), ["\n".join(lines) for lines in folded], fontsize=6.5)
    axes.set_ylim(max(1, len(names)) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def _stacked(axes: Any, panel: Panel, room_in: float) -> None:
    """Rows of segments: to the right of zero, or to its left where they are negative; a short line across
    each row is its ideal."""
    for (left, right), (index, drawn) in zip(segment_ends(panel), enumerate(panel.series), strict=True):
        rows = [int(x) for x in drawn.x]
        if drawn.role == "ideal":
            low, high = [row - 0.42 for row in rows], [row + 0.42 for row in rows]
            axes.vlines(drawn.y, low, high, colors=INK, linewidth=1.4, label=clean(drawn.label))
            continue
        number = index if drawn.colour is None else drawn.colour
        faint = drawn.role == "not significant"
        axes.barh(
            rows, [end - begin for begin, end in zip(left, right, strict=True)], left=left, height=0.62,
            color=GRID if faint else _colour(number),
            hatch="" if faint else _hatch(number), edgecolor=FAINT if faint else PAPER,
            linewidth=0.5, label=clean(drawn.label),
        )  # fmt: skip
    if any(value < 0.0 for drawn in panel.series for value in drawn.y):
        axes.axvline(0.0, color=INK, linewidth=0.8)
    _name_rows(axes, panel.names, room_in)
    axes.xaxis.set_major_formatter(plain)


def segment_ends(panel: Panel) -> list[tuple[list[float], list[float]]]:
    """Left and right ends of every series' segments; those without a begin follow each other."""
    lefts, rights = [0.0] * len(panel.names), [0.0] * len(panel.names)
    ends = []
    for drawn in panel.series:
        left, right = [], []
        for index, (x, value) in enumerate(zip(drawn.x, drawn.y, strict=True)):
            row = int(x)
            follows = rights[row] if value >= 0.0 else lefts[row] + value
            begin = drawn.begin[index] if drawn.begin else follows
            left.append(begin)
            right.append(begin + abs(value))
            if drawn.role != "ideal":
                lefts[row], rights[row] = min(lefts[row], begin), max(rights[row], right[-1])
        ends.append((left, right))
    return ends


def _forest(axes: Any, panel: Panel, room_in: float) -> None:
    for number, drawn in enumerate(panel.series):
        for index, (x, y) in enumerate(zip(drawn.x, drawn.y, strict=True)):
            interval = drawn.interval(index)
            if interval is not None:
                axes.plot(interval, (y, y), color=_colour(number), linewidth=1.4)
            axes.plot(
                x, y, _MARKERS[number % len(_MARKERS)], color=_colour(number), markersize=5,
                label=clean(drawn.label) if index == 0 else None,
            )  # fmt: skip
    axes.axvline(1.0, color=FAINT, linewidth=0.8, linestyle="--")
    _name_rows(axes, panel.names, room_in)
    if panel.x_log:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    axes.xaxis.set_major_formatter(plain)


def _distribution(axes: Any, panel: Panel, room_in: float) -> None:
    """From the first to the last share a thin line, the middle half thick, the median a mark."""
    for row, drawn in enumerate(panel.series):
        lowest, lower, middle, upper, highest = drawn.y
        axes.plot((lowest, highest), (row, row), color=COLOURS[0], linewidth=0.9)
        axes.plot((lower, upper), (row, row), color=COLOURS[0], linewidth=4.5, solid_capstyle="butt")
        axes.plot(middle, row, "|", color=INK, markersize=10, markeredgewidth=1.4)
    _name_rows(axes, [series.label for series in panel.series], room_in)
    values = [y for series in panel.series for y in series.y]
    if panel.x_log and min(values, default=0.0) > 0.0:
        _log_ticks(axes, axes.xaxis, "x", max(values) / min(values))
    axes.xaxis.set_major_formatter(plain)


def _timeline(axes: Any, panel: Panel, room_in: float) -> None:
    kinds = dict.fromkeys(series.label for series in panel.series)
    colours = {kind: number for number, kind in enumerate(kinds)}
    named: set[str] = set()
    for drawn in panel.series:
        kind = drawn.label
        spans = [(start, end - start) for start, end in zip(drawn.x, drawn.y, strict=True)]
        number = colours[kind]
        axes.broken_barh(
            spans, (drawn.row - 0.32, 0.64), facecolors=_colour(number),
            hatch=_hatch(number), edgecolor=PAPER, linewidth=0.2,
            label=None if kind in named else clean(kind),
        )  # fmt: skip
        named.add(kind)
    _name_rows(axes, panel.names, room_in)
    axes.xaxis.set_major_formatter(plain)


def clean(text: str, most: int = 60) -> str:
    """A name in one line of letters that can be drawn, cut where it is too long."""
    line = " ".join(text.split())
    return shortened("".join(letter if letter.isprintable() else "?" for letter in line), most)


def _style_of(series: Series, number: int) -> dict[str, Any]:
    if series.role == "ideal":
        return {"color": FAINT, "linestyle": "--", "linewidth": 1.0, "marker": ""}
    if series.role == "reference":
        return {"color": FAINT, "linestyle": ":", "linewidth": 1.0, "marker": ""}
    return {
        "color": _colour(number),
        "linestyle": _DASHES[number % len(_DASHES)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": 4,
        "linewidth": 1.3,
    }


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _hatch(number: int) -> str:
    """Numbers with the same colour have different hatches."""
    return _HATCHES[(number + number // len(COLOURS)) % len(_HATCHES)]


def _errors(series: Series) -> list[list[float]] | None:
    if not series.low or not any(series.interval(index) for index in range(len(series.y))):
        return None
    below, above = [], []
    for index, value in enumerate(series.y):
        interval = series.interval(index) or (math.nan, math.nan)  # nothing is drawn of it
        below.append(max(value - interval[0], 0.0))  # in this order NaN stays NaN
        above.append(max(interval[1] - value, 0.0))
    return [below, above]


PAINTERS: dict[str, Callable[[Any, Panel, float], None]] = {
    "lines": _lines,
    "bars": _bars,
    "stacked": _stacked,
    "forest": _forest,
    "distribution": _distribution,
    "timeline": _timeline,
}
