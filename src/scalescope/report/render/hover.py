"""What a figure on the page shows when a reader points at it: the values behind every mark.

Every mark has its values as its title, which a browser shows on its own; the page's script shows them at
once, and to the keyboard.
"""

import html

from scalescope.report.numbers import percent, significant
from scalescope.report.section import Panel, Series, shown_place, shown_value


def title_of(panel: Panel, series: Series, number: int) -> str:
    """The title of the mark of one value."""
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
