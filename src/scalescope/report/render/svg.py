"""Draws figures for the page: SVG and HTML of any width, with colours from the page's style sheet.

Positions along the x axis are percentages and everything else is in pixels: a picture becomes as wide as
its window, and its text keeps its size. Shapes have classes: `c0` to `c7` for the palette, `t1` to `t4` for
shades of it, and `k0`, `k1`, ... for the legend entry that shows or hides them. The title of every mark
holds its values.
"""

import html
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from scalescope.report.render.hover import title_of
from scalescope.report.render.painting import clean, doublings, has_log_axes, plain, segment_ends, size_text
from scalescope.report.section import Figure, Panel, Series

SWITCHES = 32  # legend entries that can be switched off; the style sheet has a rule for each
_COLOURS, _SHADES = 8, 5
_MOST_MARKERS = 40  # of a line; a longer one is drawn without
_PLOT_PX, _ROW_PX, _BAR_PX = 230, 26, 15
_TICKS, _FEW_VALUES = 7, 8
_NAME_LETTERS = 90
MARKERS = (  # centred on 0, 0
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "M-3.2-3.2h6.4v6.4h-6.4z",
    "M0-4.2 4 3.2H-4z",
    "M0-4.4 4.4 0 0 4.4-4.4 0z",
    "M0 4.2 4-3.2H-4z",
    "M-1.4-4h2.8v2.6H4v2.8H1.4V4h-2.8V1.4H-4v-2.8h2.6z",
    "M-4-2.4-2.4-4 0-1.6 2.4-4 4-2.4 1.6 0 4 2.4 2.4 4 0 1.6-2.4 4-4 2.4-1.6 0z",
    "M0-4.6 1.3-1.4 4.6-1 2 1 2.9 4.3 0 2.4-2.9 4.3-2 1-4.6-1-1.3-1.4z",
)


def svg_for_page(figure: Figure) -> str:
    """The legend and the panels, as well-formed HTML."""
    looks = _looks(figure)
    panels = "".join(_panel(panel, looks) for panel in figure.panels)
    picture = (
        f'<div role="img" tabindex="0" class="picture" aria-label="{_escaped(figure.alt)}">'
        f'<div class="panels">{panels}</div></div>'
    )
    return f'<div class="drawing">{_legend(looks)}{picture}</div>'


# ---- How series look, and the legend


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """The look that series of one name share; its number is that of its legend entry."""

    number: int
    colour: str  # classes
    marker: int
    shape: str  # box, line, ideal, reference, tick
    label: str
    is_listed: bool

    @property
    def classes(self) -> str:
        return f"{self.colour} k{self.number}".strip()


def _looks(figure: Figure) -> dict[str, _Look]:
    """One look for every name; names with the same colour get different shades of it."""
    listed = {name for panel in figure.panels for name in _listed(panel)}
    looks: dict[str, _Look] = {}
    shades: dict[int, list[int]] = {}
    for panel in figure.panels:
        names = list(dict.fromkeys(drawn.label for drawn in panel.series))
        for number, drawn in enumerate(panel.series):
            if drawn.label in looks:
                continue
            if panel.kind == "timeline":
                colour = names.index(drawn.label)
            else:
                colour = number if drawn.colour is None else drawn.colour
            numbers = shades.setdefault(colour % _COLOURS, [])
            shape = _shape(panel, drawn)
            if shape in ("box", "line", "point") and colour not in numbers:
                numbers.append(colour)
            looks[drawn.label] = _Look(
                number=len(looks),
                colour=_colour_classes(drawn, shape, colour, numbers),
                marker=number % len(MARKERS),
                shape=shape,
                label=drawn.label,
                is_listed=drawn.label in listed,
            )
    return looks


def _listed(panel: Panel) -> set[str]:
    """The names in the legend: none where there is only one line, or where the rows have the names."""
    names = {drawn.label for drawn in panel.series}
    is_needed = len(names) > 1 or panel.kind in ("stacked", "timeline", "forest")
    return names if is_needed and panel.kind != "distribution" else set()


def _shape(panel: Panel, drawn: Series) -> str:
    if panel.kind == "lines":
        return {"ideal": "ideal", "reference": "reference"}.get(drawn.role, "line")
    if panel.kind == "forest":
        return "point"
    return "tick" if panel.kind == "stacked" and drawn.role == "ideal" else "box"


def _colour_classes(drawn: Series, shape: str, colour: int, numbers: list[int]) -> str:
    if shape in ("ideal", "reference", "tick"):
        return shape
    if drawn.role == "not significant":
        return "unsure"
    shade = numbers.index(colour) % _SHADES
    return f"c{colour % _COLOURS}" + (f" t{shade}" if shade else "")


def _legend(looks: dict[str, _Look]) -> str:
    """An entry for every name, with a box to switch it off: the style sheet does that, without a script."""
    listed = [look for look in looks.values() if look.is_listed]
    if not listed:
        return ""
    return f'<div class="legend" role="group" aria-label="Shown series">{"".join(map(_entry, listed))}</div>'


def _entry(look: _Look) -> str:
    box = (
        f'<input type="checkbox" class="k{look.number}" checked="checked"/>' if look.number < SWITCHES else ""
    )
    drawn = {
        "box": f'<rect class="{look.colour}" x="4" y="0" width="14" height="12"/>',
        "tick": '<line class="tick" x1="11" x2="11" y1="0" y2="12"/>',
        "point": f'<g class="{look.colour}"><use href="#m{look.marker}" x="11" y="6"/></g>',
        "line": f'<g class="{look.colour}"><path class="line" d="M0 6H22"/>'
        f'<use href="#m{look.marker}" x="11" y="6"/></g>',
    }.get(look.shape, f'<path class="line {look.colour}" d="M0 6H22"/>')
    key = f'<svg width="22" height="12" aria-hidden="true">{drawn}</svg>'
    return f"<label>{box}{key} {_text(look.label)}</label>"


# ---- Scales: from values to shares of an axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An axis from `low` to `high` with its ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high one."""
        if self.log:
            if value <= 0.0:
                return 0.0
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)


def linear_scale(
    values: Iterable[float], *, from_zero: bool, whole: bool = False, margin: float = 0.05
) -> Scale:
    """From zero or with a margin around the values; ticks at round numbers."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if not math.isfinite(high - low):
        low, high = low / 2.0, high / 2.0
    room = margin * (high - low)
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        room = abs(high) * 0.1 or 1.0
    low = low if from_zero and low == 0.0 else low - room
    high = high if from_zero and high == 0.0 and low < 0.0 else high + room
    return Scale(low=low, high=high, ticks=tuple(_round_numbers(low, high, whole=whole)))


def _round_numbers(low: float, high: float, *, whole: bool) -> Iterator[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    least = (high - low) / _TICKS
    if not math.isfinite(least) or least <= 0.0:
        return
    exponent = math.floor(math.log10(least))
    step = next(factor * 10.0**exponent for factor in (1, 2, 5, 10, 20) if factor * 10.0**exponent >= least)
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    yield from (round(number * step, max(0, 2 - exponent)) for number in range(first, last + 1))


def log_scale(values: Iterable[float], *, margin: float = 0.04, at: Sequence[float] = ()) -> Scale:
    """Between positive values, with a margin; ticks `at` these values or at round numbers."""
    known = [value for value in values if 0.0 < value < math.inf]
    low, high = min(known, default=1.0), max(known, default=10.0)
    if high <= low * (1.0 + 1e-9):
        low, high = low / 1.5, high * 1.5
    room = (high / low) ** margin
    low, high = low / room, high * room
    ticks = at or _round_ratios(low, high)
    return Scale(low=low, high=high, log=True, ticks=tuple(tick for tick in ticks if low <= tick <= high))


def _round_ratios(low: float, high: float) -> list[float]:
    """Powers of ten with as many numbers between them as there is room for."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    between: tuple[tuple[float, ...], ...] = (
        (1, 1.2, 1.4, 1.7, 2, 2.5, 3, 4, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1, 3), (1,),
    )  # fmt: skip
    ticks: list[float] = []
    for factors in between:
        exact = [float(f"{factor}e{power}") for power in powers for factor in factors]
        ticks = [tick for tick in exact if low <= tick <= high]
        if len(ticks) <= _TICKS + 1:
            return ticks
    return ticks[:: -(-len(ticks) // _TICKS)]


# ---- Panels


def _panel(panel: Panel, looks: dict[str, _Look]) -> str:
    title = f'<div class="title">{_text(panel.title)}</div>' if panel.title else ""
    drawn = _lines(panel, looks) if panel.kind == "lines" else _rows(panel, looks)
    return f'<div class="panel {panel.kind}">{title}{drawn}</div>'


def _values(panel: Panel) -> list[float]:
    """All values of y with the ends of their intervals."""
    ends = [end for drawn in panel.series for end in (*drawn.low, *drawn.high) if end is not None]
    return [*(y for drawn in panel.series for y in drawn.y), *ends]


def _x_scale(panel: Panel, *, log: bool) -> Scale:
    values = sorted({x for drawn in panel.series for x in drawn.x if math.isfinite(x)})
    if not log or not values or values[0] <= 0.0:
        return linear_scale(values, from_zero=False, whole=all(x == int(x) for x in values), margin=0.03)
    if panel.x_in_bytes:
        return log_scale(values, at=doublings(values[0], values[-1]))
    if len(values) <= _FEW_VALUES:
        return log_scale(values, at=values)
    first, last = math.ceil(math.log2(values[0])), math.floor(math.log2(values[-1]))
    step = max(1, -(-(last - first) // _TICKS))
    return log_scale(values, at=[2.0**power for power in range(first, last + 1, step)])


def _lines(panel: Panel, looks: dict[str, _Look]) -> str:
    """Curves in a picture that is stretched to its width; markers and text beside them are not."""
    x_log, y_log = has_log_axes(panel)
    values = _values(panel)
    x = _x_scale(panel, log=x_log)
    if y_log:
        y = log_scale(values)
    else:
        y = linear_scale(values, from_zero=min((v for v in values if math.isfinite(v)), default=0.0) >= 0.0)

    def top(value: float) -> str:
        return _number((1.0 - y.share(value)) * _PLOT_PX)

    grid = [f'<line x1="0" x2="100%" y1="{top(tick)}" y2="{top(tick)}"/>' for tick in y.ticks]
    labels = [
        f'<text x="-6" y="{top(tick)}" dy="0.32em" text-anchor="end">{plain(tick)}</text>' for tick in y.ticks
    ]
    curves, marks = [], []
    for drawn in panel.series:
        look = looks[drawn.label]
        points = [
            (index, px, py)
            for index, (px, py) in enumerate(zip(drawn.x, drawn.y, strict=True))
            if math.isfinite(px) and math.isfinite(py)
        ]
        curves.append(_curve(drawn, look, points, x, top))
        if drawn.role == "data":
            marks.append(_points(panel, drawn, look, points, x, top))
    names = [clean(name) for name in panel.names]
    written = size_text if panel.x_in_bytes else plain
    ticks = [(x.share(float(n)), name) for n, name in enumerate(names)] if names else _ticks(x, written)
    wide = max((len(plain(tick)) for tick in y.ticks), default=1)
    return (
        f'<div class="unit">{_text(panel.y_label)}</div><div class="plot" style="--left:{wide + 1}ch">'
        f'<svg class="lines" width="100%" height="{_PLOT_PX}"><g class="grid">{"".join(grid)}'
        f'{_verticals(ticks)}</g><svg width="100%" height="{_PLOT_PX}" viewBox="0 0 1000 {_PLOT_PX}" '
        f'preserveAspectRatio="none">{"".join(curves)}</svg>{"".join(labels)}{"".join(marks)}</svg>'
        f'{_axis(ticks)}<div class="unit below">{_text(panel.x_label)}</div></div>'
    )


_Points = list[tuple[int, float, float]]  # index, x, y


def _curve(drawn: Series, look: _Look, points: _Points, x: Scale, top: Callable[[float], str]) -> str:
    def path(ends: Iterable[tuple[float, float]]) -> str:
        return "L".join(f"{_number(1000.0 * x.share(px))} {top(py)}" for px, py in ends)

    if not points:
        return ""
    band = ""
    if drawn.is_band:
        known = [(px, end) for index, px, _ in points if (end := drawn.interval(index)) is not None]
        around = [*((px, low) for px, (low, _) in known), *((px, high) for px, (_, high) in reversed(known))]
        band = f'<path class="band {look.classes}" d="M{path(around)}z"/>' if known else ""
    return f'{band}<path class="line {look.classes}" d="M{path((px, py) for _, px, py in points)}"/>'


def _points(
    panel: Panel, drawn: Series, look: _Look, points: _Points, x: Scale, top: Callable[[float], str]
) -> str:
    """What can be pointed at, with intervals and a marker where there are not too many."""
    marker = f"#m{look.marker}" if len(points) <= _MOST_MARKERS else "#m"
    marks = []
    for index, px, py in points:
        place = _percent(x.share(px))
        interval = None if drawn.is_band else drawn.interval(index)
        whisker = "" if interval is None else _upright(place, top(interval[0]), top(interval[1]))
        use = f'<use href="{marker}" x="{place}" y="{top(py)}"/>'
        marks.append(f"<g>{title_of(panel, drawn, index)}{whisker}{use}</g>")
    return f'<g class="{look.classes}">{"".join(marks)}</g>'


def _upright(place: str, low: str, high: str) -> str:
    ends = "".join(f'<use href="#cap" x="{place}" y="{end}"/>' for end in (low, high))
    return f'<line class="whisker" x1="{place}" x2="{place}" y1="{low}" y2="{high}"/>{ends}'


# ---- Rows: a name, and its bars, spans, points or range


def _rows(panel: Panel, looks: dict[str, _Look]) -> str:
    """Rows with their names left of them, or above them where there is little room."""
    names = list(panel.names)
    if panel.kind == "distribution":
        names = [drawn.label for drawn in panel.series]
    scale = _row_scale(panel)
    height = max(_ROW_PX, _BAR_PX * len(panel.series) + 8) if panel.kind == "bars" else _ROW_PX
    shapes: list[list[str]] = [[] for _ in names]
    for row, shape in _ROW_SHAPES[panel.kind](panel, looks, scale):
        if 0 <= row < len(names):
            shapes[row].append(shape)
    ticks = _ticks(scale, plain)
    zero = [1.0] if panel.kind == "forest" else [0.0] if scale.low < 0.0 else []
    places = [_percent(scale.share(at)) for at in zero]
    lines = "".join(f'<line class="zero" x1="{at}" x2="{at}" y1="0" y2="100%"/>' for at in places)
    rows = "".join(
        f'<div class="row"><span class="name" title="{_escaped(_name(name))}">{_text(_name(name))}</span>'
        f'<svg height="{height}">{"".join(drawn)}</svg></div>'
        for name, drawn in zip(names, shapes, strict=True)
    )
    longest = min(max((len(_name(name)) for name in names), default=0), 26)
    label = panel.y_label if panel.kind == "bars" else panel.x_label
    return (
        f'<div class="rows" style="--left:{max(longest * 0.95 + 1.5, 4.0):.1f}ch"><div class="plot">'
        f'<svg class="grid" aria-hidden="true">{_verticals(ticks)}{lines}</svg>{rows}</div>'
        f'{_axis(ticks)}<div class="unit below">{_text(label)}</div></div>'
    )


def _row_scale(panel: Panel) -> Scale:
    if panel.kind == "stacked":
        ends: list[float] = []
        for drawn, (left, right) in zip(panel.series, segment_ends(panel), strict=True):
            ends += drawn.y if drawn.role == "ideal" else (*left, *right)
        return linear_scale(ends, from_zero=True, margin=0.02)
    if panel.kind == "bars":
        return linear_scale(_values(panel), from_zero=True, margin=0.02)
    if panel.kind == "timeline":
        ends = [end for drawn in panel.series for end in (*drawn.x, *drawn.y)]
        return linear_scale(ends, from_zero=min(ends, default=0.0) >= 0.0, margin=0.01)
    if panel.kind == "forest":
        ends = [end for drawn in panel.series for end in (*drawn.low, *drawn.high) if end is not None]
        values = [1.0, *ends, *(x for drawn in panel.series for x in drawn.x)]
    else:
        values = [y for drawn in panel.series for y in drawn.y]
    if panel.x_log and min(values, default=0.0) > 0.0:
        return log_scale(values)
    return linear_scale(values, from_zero=False)


_RowShapes = Iterator[tuple[int, str]]  # rows, and what is drawn in them


def _bars(panel: Panel, looks: dict[str, _Look], scale: Scale) -> _RowShapes:
    for number, drawn in enumerate(panel.series):
        look = looks[drawn.label]
        top = 4 + number * _BAR_PX
        for index, (row, value) in enumerate(zip(drawn.x, drawn.y, strict=True)):
            if not math.isfinite(value):
                continue
            interval = drawn.interval(index)
            whisker = "" if interval is None else _lying(scale, interval, top + _BAR_PX / 2)
            rect = _rect(scale, min(value, 0.0), max(value, 0.0), look.colour, top, _BAR_PX - 1)
            yield int(row), f'<g class="k{look.number}">{title_of(panel, drawn, index)}{rect}{whisker}</g>'


def _stacked(panel: Panel, looks: dict[str, _Look], scale: Scale) -> _RowShapes:
    for drawn, (left, right) in zip(panel.series, segment_ends(panel), strict=True):
        look = looks[drawn.label]
        for index, (begin, end) in enumerate(zip(left, right, strict=True)):
            row = int(drawn.x[index])
            if not math.isfinite(end - begin):
                continue
            if look.shape == "tick":
                at = _percent(scale.share(drawn.y[index]))
                yield row, f'<line class="{look.classes}" x1="{at}" x2="{at}" y1="1" y2="{_ROW_PX - 1}"/>'
                continue
            title = title_of(panel, drawn, index)
            yield row, _rect(scale, begin, end, look.classes, 4, _ROW_PX - 8, title)


def _forest(panel: Panel, looks: dict[str, _Look], scale: Scale) -> _RowShapes:
    for drawn in panel.series:
        look = looks[drawn.label]
        for index, (x, row) in enumerate(zip(drawn.x, drawn.y, strict=True)):
            if not math.isfinite(x):
                continue
            interval = drawn.interval(index)
            whisker = "" if interval is None else _lying(scale, interval, _ROW_PX / 2)
            use = f'<use href="#m{look.marker}" x="{_percent(scale.share(x))}" y="{_number(_ROW_PX / 2)}"/>'
            yield int(row), f'<g class="{look.classes}">{title_of(panel, drawn, index)}{whisker}{use}</g>'


def _distribution(panel: Panel, looks: dict[str, _Look], scale: Scale) -> _RowShapes:
    """From the first to the last share a thin line, the middle half thick, the median a mark."""
    middle_px = _number(_ROW_PX / 2)
    for row, drawn in enumerate(panel.series):
        if len(drawn.y) != 5 or not all(map(math.isfinite, drawn.y)):
            continue
        lowest, lower, middle, upper, highest = (_percent(scale.share(value)) for value in drawn.y)
        yield (
            row,
            (
                f'<g class="c0">{title_of(panel, drawn, 0)}'
                f"{_rect(scale, drawn.y[0], drawn.y[-1], 'box', 2, _ROW_PX - 4)}"
                f'<line class="thin" x1="{lowest}" x2="{highest}" y1="{middle_px}" y2="{middle_px}"/>'
                f'<line class="thick" x1="{lower}" x2="{upper}" y1="{middle_px}" y2="{middle_px}"/>'
                f'<line class="tick" x1="{middle}" x2="{middle}" y1="5" y2="{_ROW_PX - 5}"/></g>'
            ),
        )


def _timeline(panel: Panel, looks: dict[str, _Look], scale: Scale) -> _RowShapes:
    for drawn in panel.series:
        spans = [
            _rect(scale, begin, end, "", 4, _ROW_PX - 8, title_of(panel, drawn, index))
            for index, (begin, end) in enumerate(zip(drawn.x, drawn.y, strict=True))
            if math.isfinite(end - begin)
        ]
        if spans:
            yield drawn.row, f'<g class="{looks[drawn.label].classes}">{"".join(spans)}</g>'


_ROW_SHAPES: dict[str, Callable[[Panel, dict[str, _Look], Scale], _RowShapes]] = {
    "bars": _bars,
    "stacked": _stacked,
    "forest": _forest,
    "distribution": _distribution,
    "timeline": _timeline,
}


def _rect(
    scale: Scale, begin: float, end: float, classes: str, top: float, height: float, title: str = ""
) -> str:
    left, right = scale.share(begin), scale.share(end)
    named = f' class="{classes}"' if classes else ""
    size = f'width="{_percent(right - left)}" y="{_number(top)}" height="{_number(height)}"'
    return f'<rect{named} x="{_percent(left)}" {size}>{title}</rect>'


def _lying(scale: Scale, interval: tuple[float, float], at: float) -> str:
    low, high = (_percent(scale.share(end)) for end in interval)
    return f'<line class="whisker" x1="{low}" x2="{high}" y1="{_number(at)}" y2="{_number(at)}"/>'


# ---- Ticks, numbers and text


def _ticks(scale: Scale, written: Callable[[float], str]) -> list[tuple[float, str]]:
    return [(scale.share(tick), written(tick)) for tick in scale.ticks]


def _verticals(ticks: Sequence[tuple[float, str]]) -> str:
    return "".join(
        f'<line x1="{_percent(share)}" x2="{_percent(share)}" y1="0" y2="100%"/>' for share, _ in ticks
    )


def _axis(ticks: Sequence[tuple[float, str]]) -> str:
    """The ticks' texts; where there is little room the style sheet leaves every second one out."""
    texts = []
    kept = next((number for number, (_, text) in enumerate(ticks) if text == "0"), 0)
    for number, (share, text) in enumerate(ticks):
        odd = ' class="odd"' if (number - kept) % 2 and len(ticks) > 3 else ""
        anchor = "end" if share > 0.97 and len(text) > 3 else "middle"
        texts.append(
            f'<text{odd} x="{_percent(share)}" y="13" text-anchor="{anchor}">{_escaped(text)}</text>'
        )
    return f'<svg class="axis" height="18">{"".join(texts)}</svg>'


def _percent(share: float) -> str:
    return f"{_number(100.0 * share, 3)}%"


def _number(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


def _name(name: str) -> str:
    return clean(name.replace("\n", ", "), _NAME_LETTERS)


def _text(text: str) -> str:
    return html.escape(clean(text, 2 * _NAME_LETTERS), quote=False)


def _escaped(text: str) -> str:
    return html.escape("".join(letter if letter.isprintable() else " " for letter in text))
