"""Drawing: every kind of panel in every shape of data, for paper and for the page."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from scalescope.report.figure import Figure, Kind, Panel, Series
from scalescope.report.render.drawing import save, svg_for_page
from scalescope.report.render.painting import COLOURS
from tests.builders.runs import HOSTILE

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
SVG = "{http://www.w3.org/2000/svg}"
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


def text_of(picture: Figure) -> str:
    """What a reader of the page's picture sees without pointing at anything."""
    root = parsed(picture)
    for parent in list(root.iter()):
        for title in parent.findall(f"{SVG}title"):
            parent.remove(title)
    return " ".join("".join(root.itertext()).split())


def parsed(picture: Figure) -> ElementTree.Element:
    return ElementTree.fromstring(svg_for_page(picture).replace("xlink:href", "href"))


def values_of(picture: Figure) -> list[str]:
    """What is shown when a reader points at the marks."""
    return [title.text or "" for title in parsed(picture).iter(f"{SVG}title")]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_without_values_and_without_any_series(kind: Kind) -> None:
    nothing = panel_of(kind, series_of(kind, 0, "first"), series_of(kind, 0, "second"))
    assert svg_for_page(figure(nothing, panel_of(kind, rows=0))).startswith("<svg")


@pytest.mark.parametrize(("kind", "thickness"), [("lines", "0.9"), ("bars", "0.9"), ("forest", "1.4")])
def test_intervals_are_drawn_where_there_are_some(kind: Kind, thickness: str) -> None:
    whiskers = f"stroke-width: {thickness}"
    with_them = svg_for_page(figure(panel_of(kind, series_of(kind, 3, intervals=True))))
    assert with_them.count(whiskers) >= 3
    assert whiskers not in svg_for_page(figure(panel_of(kind, series_of(kind, 3))))


@pytest.mark.parametrize("kind", KINDS)
def test_every_mark_shows_its_values(kind: Kind) -> None:
    rows = [series_of(kind, 3, "first", intervals=kind != "timeline"), series_of(kind, 3, "second")]
    panel = panel_of(kind, *rows)
    texts = values_of(figure(panel, panel))
    assert len(texts) == 2 * (2 if kind == "distribution" else 6)
    assert {name for name in ("first", "second") for text in texts if name in text} == {"first", "second"}
    assert any("2" in text for text in texts)


def test_values_have_their_places_and_intervals() -> None:
    line = Series(label="batch 64", x=(1.0, 4.0), y=(1.0, 3.29), low=(None, 3.1), high=(None, 3.4))
    made = Panel(kind="lines", x_label="ranks", y_label="speedup", series=(line,), x_log=True)
    assert values_of(figure(made)) == [
        "batch 64, ranks 1: speedup 1.000",
        "batch 64, ranks 4: speedup 3.290 [3.100, 3.400]",
    ]


@pytest.mark.parametrize(("ranks", "y_log"), [((1.0, 2.0), False), ((2.0, 3.0, 4.0, 16.0), True)])
def test_the_ideal_is_a_straight_line(ranks: tuple[float, ...], *, y_log: bool) -> None:
    delivered = Series(label="a", x=ranks, y=tuple(rank**0.5 for rank in ranks))
    ideal = Series(label="ideal", x=ranks, y=tuple(3.0 * rank for rank in ranks), role="ideal")
    made = Panel(
        kind="lines", x_label="ranks", y_label="", series=(delivered, ideal), x_log=True, y_log=y_log
    )
    dashed = [
        path.get("d", "")
        for path in parsed(figure(made)).iter(f"{SVG}path")
        if "stroke-dasharray: 3.7" in path.get("style", "") and path.get("clip-path")
    ]
    points = [tuple(map(float, point.split())) for point in re.findall(r"[ML] ([-\d. ]+)", dashed[0])]
    (x0, y0), (x1, y1) = points[0], points[-1]
    for x, y in points:
        assert y == pytest.approx(y0 + (y1 - y0) * (x - x0) / (x1 - x0), abs=0.01)


def test_every_format_is_written_and_is_the_same_every_time(tmp_path: Path) -> None:
    picture = figure(panel_of("lines", series_of("lines", 3)), notes=("link shaped to 1 Gbit/s",))
    first = [path.read_bytes() for path in save(picture, tmp_path, "column")]
    paths = save(picture, tmp_path, "column")
    assert [path.name for path in paths] == ["picture.png", "picture.svg", "picture.pdf"]
    assert [path.read_bytes() for path in paths] == first
    assert first[0].startswith(b"\x89PNG") and b"<svg" in first[1] and first[2].startswith(b"%PDF")


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_names_are_drawn_as_text(tmp_path: Path, kind: Kind) -> None:
    named = Panel(
        kind=kind,
        x_label=HOSTILE,
        y_label=HOSTILE,
        series=(series_of(kind, 1, HOSTILE * 4), series_of(kind, 1, "名前\x00\U0001f600")),
        names=("row 0", HOSTILE * 9),
        title=HOSTILE,
    )
    picture = figure(named, title=HOSTILE * 5)
    if kind == "timeline":
        save(picture, tmp_path, "page")
    page = svg_for_page(picture)
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_name_is_no_formula_no_colour_and_no_id() -> None:
    name = '$x_1$ #0072b2 id="x" url(#y)'
    labelled = Panel(kind="lines", x_label=name, y_label="", series=(series_of("lines", 2),), x_log=False)
    assert name in text_of(figure(labelled))


def test_ticks_of_logarithmic_axes_are_plain_numbers() -> None:
    line = Series(label="a", x=(1.0, 2.0, 4.0), y=(1500.0, 2500.0, 4200.0))
    wide = Series(label="a", x=tuple(2.0**power for power in range(12)), y=(1.0,) * 11 + (1e6,))
    panels = [
        Panel(kind="lines", x_label="ranks", y_label="rate", series=(series,), x_log=True, y_log=True)
        for series in (line, wide)
    ]
    text = text_of(figure(*panels))
    assert "mathdefault" not in text and "×" not in text


def test_sizes_on_an_axis_are_few_and_have_units() -> None:
    line = Series(label="a", x=tuple(1024.0 * 4**power for power in range(8)), y=(1.0,) * 8)
    made = Panel(kind="lines", x_label="size", x_in_bytes=True, y_label="rate", series=(line,), x_log=True)
    assert re.findall(r"\d+ [KM]iB", text_of(figure(made))) == [
        "1 KiB",
        "8 KiB",
        "64 KiB",
        "512 KiB",
        "4 MiB",
    ]


def test_a_figure_has_the_colours_of_the_page_and_names_no_address_elsewhere() -> None:
    page = svg_for_page(figure(panel_of("lines", series_of("lines", 2))))
    assert f"var(--c1, {COLOURS[0]})" in page
    assert "var(--ink, " in page
    assert not re.search(r"(?:fill|stroke): #(?!000000|ffffff)", page)
    assert set(re.findall(r"https?://[^\"<\s]+", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_ids_differ_between_the_figures_of_a_page_and_are_referred_to() -> None:
    drawn = panel_of("stacked", series_of("stacked", 3), series_of("stacked", 3, "b"))
    names = ("data_a", "data-a", "dataa", "dätaa")
    pages = [svg_for_page(figure(drawn, name=name)) for name in names]
    ids = [set(re.findall(r' id="([^"]+)"', page)) for page in pages]
    assert all(ids)
    assert sum(map(len, ids)) == len(set.union(*ids))
    wanted = set(re.findall(r'(?:href="#|url\(#)([^")]+)', pages[0]))
    assert wanted and wanted <= ids[0]


def test_long_names_of_lines_stand_below_the_picture() -> None:
    many = [
        series_of("lines", 2, f"batch {number}, a setting with a long name {number}") for number in range(5)
    ]
    assert "a setting with a long name 4" in text_of(figure(panel_of("lines", *many)))
