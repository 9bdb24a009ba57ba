"""Files of figures for papers: every kind of panel in every shape of data."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from scalescope.report.render import drawing
from scalescope.report.render.drawing import save
from scalescope.report.section import Figure, Kind, Panel, Series
from tests.builders.figures import (
    KINDS,
    SIZES,
    figure,
    hostile_panel,
    log_panels,
    panel_of,
    series_of,
    sizes_panel,
)
from tests.builders.runs import HOSTILE

SVG = "{http://www.w3.org/2000/svg}"
Drawn = Callable[[Figure], str]


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """Draws a figure to an SVG file and reads it."""
    monkeypatch.setattr(drawing, "FORMATS", ("svg",))
    return lambda picture: save(picture, tmp_path, "page")[0].read_text(encoding="utf-8")


def text_of(svg: str) -> str:
    return " ".join("".join(ElementTree.fromstring(svg).itertext()).split())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_without_values_and_without_any_series(drawn: Drawn, kind: Kind) -> None:
    nothing = panel_of(kind, series_of(kind, 0, "first"), series_of(kind, 0, "second"))
    assert "<svg" in drawn(figure(nothing, panel_of(kind, rows=0)))


@pytest.mark.parametrize(("kind", "thickness"), [("lines", "0.9"), ("bars", "0.9"), ("forest", "1.4")])
def test_intervals_are_drawn_where_there_are_some(drawn: Drawn, kind: Kind, thickness: str) -> None:
    whiskers = f"stroke-width: {thickness}"
    with_them = drawn(figure(panel_of(kind, series_of(kind, 3, intervals=True))))
    assert with_them.count(whiskers) >= 3
    assert whiskers not in drawn(figure(panel_of(kind, series_of(kind, 3))))


@pytest.mark.parametrize(("ranks", "y_log"), [((1.0, 2.0), False), ((2.0, 3.0, 4.0, 16.0), True)])
def test_the_ideal_is_a_straight_line(drawn: Drawn, ranks: tuple[float, ...], *, y_log: bool) -> None:
    delivered = Series(label="a", x=ranks, y=tuple(rank**0.5 for rank in ranks))
    ideal = Series(label="ideal", x=ranks, y=tuple(3.0 * rank for rank in ranks), role="ideal")
    made = Panel(
        kind="lines", x_label="ranks", y_label="", series=(delivered, ideal), x_log=True, y_log=y_log
    )
    dashed = [
        path.get("d", "")
        for path in ElementTree.fromstring(drawn(figure(made))).iter(f"{SVG}path")
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
def test_hostile_names_are_drawn_as_text(drawn: Drawn, kind: Kind) -> None:
    picture = figure(hostile_panel(kind), title=HOSTILE * 5)
    svg = drawn(picture)
    assert "<script" not in svg and "&lt;script&gt;" in svg


def test_a_name_is_no_formula(drawn: Drawn) -> None:
    name = "$x_1$ #0072b2"
    labelled = Panel(kind="lines", x_label=name, y_label="", series=(series_of("lines", 2),), x_log=False)
    assert name in text_of(drawn(figure(labelled)))


def test_ticks_of_logarithmic_axes_are_plain_numbers(drawn: Drawn) -> None:
    text = text_of(drawn(figure(*log_panels())))
    assert "mathdefault" not in text and "×" not in text


def test_sizes_on_an_axis_are_few_and_have_units(drawn: Drawn) -> None:
    assert re.findall(r"\d+ [KM]iB", text_of(drawn(figure(sizes_panel())))) == [*SIZES]


def test_long_names_of_lines_stand_below_the_picture(drawn: Drawn) -> None:
    many = [
        series_of("lines", 2, f"batch {number}, a setting with a long name {number}") for number in range(5)
    ]
    assert "a setting with a long name 4" in text_of(drawn(figure(panel_of("lines", *many))))
