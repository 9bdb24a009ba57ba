"""What a figure on the page shows when a reader points at it: the values behind every mark.

Painters name the marks by panel, series and value (`mark_id`); here these names become titles. A browser
shows titles by itself; the page's script shows them at once.
"""

import html
import re

from scalescope.report.figure import Figure, Panel, Series, shown_place, shown_value
from scalescope.report.numbers import percent, significant

_MARK = re.compile(r'<g id="(mark-\d+-\d+(?:-\d+)?)">')
_POINT = re.compile(r'<use [^>]*x="([^"]+)" y="([^"]+)"[^>]*/>')
_SPAN = re.compile(r"<path ([^>]*)/>")
_RADIUS = 6  # around a point, in points: easier to hit than the point itself


def mark_id(panel: int, series: int, value: int | None = None) -> str:
    """The name of what is drawn for one value, or for all values of a series in their order."""
    return f"mark-{panel}-{series}" + ("" if value is None else f"-{value}")


def with_values(svg: str, figure: Figure) -> str:
    """The picture with a title for every mark; a series whose marks cannot be counted has none."""
    parts = []
    position = 0
    for match in _MARK.finditer(svg):
        numbers = [int(number) for number in match[1].split("-")[1:]]
        panel = figure.panels[numbers[0]]
        series = panel.series[numbers[1]]
        parts.append(svg[position : match.end()])
        position = match.end()
        if len(numbers) == 3:
            parts.append(_title(panel, series, numbers[2]))
            continue
        end = _end_of_group(svg, position)
        parts.append(_with_each(svg[position:end], panel, series))
        position = end
    return "".join((*parts, svg[position:]))


def _end_of_group(svg: str, begin: int) -> int:
    """Where the group ends whose opening tag ends at `begin`."""
    depth = 1
    for tag in re.compile(r"<(/?)g\b[^>]*>").finditer(svg, begin):
        depth += -1 if tag[1] else 1
        if depth == 0:
            return tag.start()
    return begin


def _with_each(group: str, panel: Panel, series: Series) -> str:
    """Spans of a timeline get their titles; around the points of a line circles are added that have them."""
    count = len(series.x)
    if panel.kind == "timeline":
        if len(_SPAN.findall(group)) != count:
            return group
        numbers = iter(range(count))
        return _SPAN.sub(lambda span: f"<path {span[1]}>{_title(panel, series, next(numbers))}</path>", group)
    points = _POINT.findall(group)
    if len(points) != count:
        return group
    circles = (
        f'<circle class="hit" cx="{x}" cy="{y}" r="{_RADIUS}" fill="none" pointer-events="all">'
        f"{_title(panel, series, number)}</circle>"
        for number, (x, y) in enumerate(points)
    )
    return "\n".join((group, *circles, ""))


def _title(panel: Panel, series: Series, number: int) -> str:
    line = " ".join(value_text(panel, series, number).split())
    clean = "".join(letter if letter.isprintable() else "?" for letter in line)
    return f"<title>{html.escape(clean, quote=False)}</title>"


def value_text(panel: Panel, series: Series, number: int) -> str:
    """One value with its name, as a sentence part: `batch 64, ranks 4: efficiency, % 82.2 [81.9, 82.5]`."""
    x, y = series.x[number], series.y[number]
    if panel.kind == "lines":
        position = f"{panel.x_label} {shown_place(panel, x)}".strip()
        return f"{series.label}, {position}: {panel.y_label} {shown_value(y, series.interval(number))}"
    if panel.kind in ("bars", "stacked"):
        return f"{shown_place(panel, x)}: {series.label} {shown_value(y, series.interval(number))}"
    if panel.kind == "forest":
        return f"{panel.names[int(y)]}: {shown_value(x, series.interval(number))} ({series.label})"
    if panel.kind == "timeline":
        return (
            f"{panel.names[series.row]}: {series.label}, {panel.x_label} {significant(x)} to {significant(y)}"
        )
    shares = ", ".join(
        f"{percent(share)} below {significant(value)}"
        for share, value in zip(series.x, series.y, strict=True)
    )
    return f"{series.label}: {panel.x_label}: {shares}"
