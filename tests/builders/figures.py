"""Made-up figures of every kind."""

from scalescope.report.section import Figure, Kind, Panel, Series
from tests.builders.runs import HOSTILE

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
KINDS: tuple[Kind, ...] = ("lines", "bars", "stacked", "forest", "distribution", "timeline")


def figure(
    *panels: Panel, name: str = "picture", title: str = "A title", notes: tuple[str, ...] = ()
) -> Figure:
    return Figure(name=name, title=title, alt="what it shows", panels=panels, notes=notes)


def series_of(kind: Kind, count: int, label: str = "a", *, intervals: bool = False) -> Series:
    places = tuple(map(float, range(count)))
    if kind == "distribution":
        return Series(label=label, x=SHARES, y=(1.0, 2.0, 3.0, 4.0, 5.0))
    if kind == "timeline":
        return Series(label=label, x=places, y=tuple(position + 0.5 for position in places))
    values = tuple(position + 1.0 for position in places)
    x, y = (values, places) if kind == "forest" else (places, values)
    low = tuple(value * 0.9 for value in values) if intervals else ()
    high = tuple(value * 1.1 for value in values) if intervals else ()
    return Series(label=label, x=x, y=y, low=low, high=high)


def panel_of(kind: Kind, *series: Series, rows: int = 3) -> Panel:
    names = tuple(f"row {row}" for row in range(rows)) if kind not in ("lines", "distribution") else ()
    return Panel(kind=kind, x_label="x", y_label="y", series=series, names=names)


def hostile_panel(kind: Kind) -> Panel:
    """Names that are markup, formulas and letters without glyphs."""
    return Panel(
        kind=kind,
        x_label=HOSTILE,
        y_label=HOSTILE,
        series=(series_of(kind, 1, HOSTILE * 4), series_of(kind, 1, "名前\x00\U0001f600")),
        names=("row 0", HOSTILE * 9),
        title=HOSTILE,
    )


def log_panels() -> list[Panel]:
    """Both axes logarithmic, with a few values and with many."""
    line = Series(label="a", x=(1.0, 2.0, 4.0), y=(1500.0, 2500.0, 4200.0))
    wide = Series(label="a", x=tuple(2.0**power for power in range(12)), y=(1.0,) * 11 + (1e6,))
    return [
        Panel(kind="lines", x_label="ranks", y_label="rate", series=(series,), x_log=True, y_log=True)
        for series in (line, wide)
    ]


SIZES = ("1 KiB", "8 KiB", "64 KiB", "512 KiB", "4 MiB")  # ticks of `sizes_panel`


def sizes_panel() -> Panel:
    line = Series(label="a", x=tuple(1024.0 * 4**power for power in range(8)), y=(1.0,) * 8)
    return Panel(kind="lines", x_label="size", x_in_bytes=True, y_label="rate", series=(line,), x_log=True)
