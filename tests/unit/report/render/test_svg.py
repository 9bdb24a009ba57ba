"""Figures of the page: shapes are where their values are, text is escaped, nothing is missing."""

import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

import pytest

from scalescope.report.render.svg import linear_scale, log_scale, svg_for_page
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
)  # fmt: skip

Element = ElementTree.Element


def parsed(picture: Figure) -> Element:
    return ElementTree.fromstring(svg_for_page(picture))


def texts_of(picture: Figure, tag: str) -> list[str]:
    return ["".join(element.itertext()) for element in parsed(picture).iter(tag)]


def values_of(picture: Figure) -> list[str]:
    """What is shown when a reader points at the marks."""
    return texts_of(picture, "title")


def legend_of(picture: Figure) -> list[str]:
    return [text.strip() for text in texts_of(picture, "label")]


def rows_of(picture: Figure) -> list[Element]:
    return [row for row in parsed(picture).iter("div") if row.get("class") == "row"]


def rects(element: Element) -> list[tuple[float, float]]:
    """The left end and width of every box, in percent."""
    return [
        (float(rect.get("x", "").rstrip("%")), float(rect.get("width", "").rstrip("%")))
        for rect in element.iter("rect")
    ]


def numbers_of(picture: Figure) -> Iterator[float]:
    """Every position and size that is drawn."""
    for element in parsed(picture).iter():
        for name in ("x", "y", "x1", "x2", "y1", "y2", "width", "height", "d"):
            for number in re.findall(r"[-\w.]+", re.sub(r"[MLHz]", " ", element.get(name, ""))):
                yield float(number)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_without_values_and_without_any_series(kind: Kind) -> None:
    nothing = panel_of(kind, series_of(kind, 0, "first"), series_of(kind, 0, "second"))
    made = parsed(figure(nothing, panel_of(kind, rows=0)))
    assert len([part for part in made.iter("div") if str(part.get("class")).startswith("panel ")]) == 2


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


def test_bars_are_as_long_as_their_values() -> None:
    bars = Panel(
        kind="bars", x_label="", y_label="rate", names=("a", "b"),
        series=(Series(label="p", x=(0.0, 1.0), y=(10.0, 40.0)), Series(label="q", x=(0.0,), y=(-20.0,))),
    )  # fmt: skip
    (p_a, q_a), (p_b,) = (rects(row) for row in rows_of(figure(bars)))
    assert p_b[1] == pytest.approx(4.0 * p_a[1], abs=0.01)
    assert q_a[1] == pytest.approx(2.0 * p_a[1], abs=0.01)
    assert p_a[0] == p_b[0] == pytest.approx(q_a[0] + q_a[1], abs=0.01)  # where zero is


def test_segments_follow_each_other_and_sum_to_their_values() -> None:
    stack = Panel(
        kind="stacked", x_label="ms", y_label="", names=("a", "b"),
        series=(
            Series(label="compute", x=(0.0, 1.0), y=(6.0, 3.0)),
            Series(label="waiting", x=(0.0, 1.0), y=(2.0, 1.0)),
            Series(label="ideal", role="ideal", x=(0.0, 1.0), y=(5.0, 5.0)),
        ),
    )  # fmt: skip
    first, second = (rects(row) for row in rows_of(figure(stack)))
    assert first[0][0] == second[0][0] == 0.0
    for (left, width), (after, _) in (first, second):
        assert after == pytest.approx(left + width, abs=0.01)
    totals = [sum(width for _, width in row) for row in (first, second)]
    assert totals[0] == pytest.approx(2.0 * totals[1], abs=0.01)
    assert 90.0 < totals[0] < 100.0  # the ideal is a mark in the row, not a segment of it


def test_spans_of_a_timeline_lie_between_their_ends() -> None:
    spans = Series(label="compute", row=1, x=(0.0, 5.0), y=(2.0, 9.0))
    made = figure(Panel(kind="timeline", x_label="ms", y_label="", names=("r0", "r1"), series=(spans,)))
    empty, full = (rects(row) for row in rows_of(made))
    assert empty == []
    (first, width), (second, other) = full
    assert first == 0.0
    assert (second / width, other / width) == (pytest.approx(2.5, abs=0.01), pytest.approx(2.0, abs=0.01))


@pytest.mark.parametrize("kind", ["lines", "bars", "forest"])
def test_intervals_are_drawn_where_there_are_some(kind: Kind) -> None:
    with_them = svg_for_page(figure(panel_of(kind, series_of(kind, 3, intervals=True))))
    assert with_them.count('class="whisker"') == 3
    assert "whisker" not in svg_for_page(figure(panel_of(kind, series_of(kind, 3))))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "distribution"])
def test_every_series_has_a_legend_entry_that_can_hide_all_its_shapes(kind: Kind) -> None:
    names = [f"series {number}" for number in range(12)]
    made = figure(panel_of(kind, *(series_of(kind, 3, name) for name in names)))
    assert legend_of(made) == names
    boxes = [box.get("class") for box in parsed(made).iter("input")]
    classes = {name for element in parsed(made).iter() for name in str(element.get("class")).split()}
    assert len(set(boxes)) == 12 and set(boxes) <= classes
    looks = {  # what the key of an entry is drawn with
        ElementTree.tostring(key) for entry in parsed(made).iter("label") for key in entry.iter("svg")
    }
    assert len(looks) == 12


def test_panels_share_the_legend_and_a_line_drawn_again_hides_with_its_name() -> None:
    lines = (
        Series(label="a", x=(1.0, 2.0), y=(1.0, 2.0)),
        Series(label="ideal", x=(1.0, 2.0), y=(1.0, 2.0), role="ideal"),
        Series(label="ideal", x=(1.0, 2.0), y=(2.0, 4.0), role="ideal", in_legend=False),
    )
    made = figure(panel_of("lines", *lines), panel_of("lines", *lines))
    assert legend_of(made) == ["a", "ideal"]
    assert len([path for path in parsed(made).iter("path") if path.get("class") == "line ideal k1"]) == 4


def test_a_name_that_needs_a_legend_in_one_panel_only_has_an_entry() -> None:
    alone, both = (
        panel_of("lines", *(series_of("lines", 2, name) for name in names)) for names in ("a", "ab")
    )
    assert legend_of(figure(alone)) == []
    assert legend_of(figure(alone, both)) == ["a", "b"]


@pytest.mark.parametrize(("ranks", "y_log"), [((1.0, 2.0), False), ((2.0, 3.0, 4.0, 16.0), True)])
def test_the_ideal_is_a_straight_line(ranks: tuple[float, ...], *, y_log: bool) -> None:
    delivered = Series(label="a", x=ranks, y=tuple(rank**0.5 for rank in ranks))
    ideal = Series(label="ideal", x=ranks, y=tuple(3.0 * rank for rank in ranks), role="ideal")
    made = Panel(
        kind="lines", x_label="ranks", y_label="", series=(delivered, ideal), x_log=True, y_log=y_log
    )
    (path,) = [path for path in parsed(figure(made)).iter("path") if path.get("class") == "line ideal k1"]
    points = [tuple(map(float, point.split())) for point in re.split("[ML]", path.get("d", ""))[1:]]
    (x0, y0), (x1, y1) = points[0], points[-1]
    assert len(points) == len(ranks) and x1 > x0 and y1 < y0
    for x, y in points:
        assert y == pytest.approx(y0 + (y1 - y0) * (x - x0) / (x1 - x0), abs=0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_are_not_numbers_are_left_out(kind: Kind) -> None:
    broken = (math.nan, math.inf, -math.inf, 1.0, 0.0)
    rows = (0.0, 1.0, 2.0, 0.0, 1.0)
    x, y = (broken, rows) if kind in ("forest", "timeline") else (rows, broken)
    made = figure(panel_of(kind, Series(label="a", x=x, y=y), series_of(kind, 3, "b")))
    assert all(math.isfinite(number) for number in numbers_of(made))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 1e-300, 1e300, -5.0])
def test_equal_tiny_and_huge_values_have_an_axis(kind: Kind, value: float) -> None:
    rows = tuple(map(float, range(5)))[: 3 if kind not in ("distribution", "lines") else 5]
    values = (value,) * len(rows)
    x, y = (values, rows) if kind == "forest" else (rows, values)
    made = figure(panel_of(kind, Series(label="a", x=x, y=y)))
    assert all(math.isfinite(number) for number in numbers_of(made))


@pytest.mark.parametrize(
    ("values", "ticks"),
    [((0.0, 10.0), (0, 2, 4, 6, 8, 10)), ((0.0, 0.28), (0, 0.05, 0.1, 0.15, 0.2, 0.25)), ((0.0,), (0, 0.2))],
)
def test_ticks_of_linear_axes_are_round_numbers(values: tuple[float, ...], ticks: tuple[float, ...]) -> None:
    assert linear_scale(values, from_zero=True).ticks[: len(ticks)] == ticks


@pytest.mark.parametrize("high", [1.3, 2.0, 7.0, 80.0, 1e4, 1e12, 1e200])
def test_logarithmic_axes_have_a_few_ticks_inside(high: float) -> None:
    scale = log_scale((1.0, high))
    assert 2 <= len(scale.ticks) <= 9
    assert scale.low <= scale.ticks[0] and scale.ticks[-1] <= scale.high
    assert 0.0 < scale.share(1.0) < scale.share(high) < 1.0


def test_ticks_of_logarithmic_axes_are_plain_numbers() -> None:
    ticks = texts_of(figure(*log_panels()), "text")
    assert {"2,000", "4,000", "1,000,000", "1,024"} <= set(ticks)
    assert all(re.fullmatch(r"[\d,.]+", tick) for tick in ticks)


def test_sizes_on_an_axis_are_few_and_have_units() -> None:
    assert [tick for tick in texts_of(figure(sizes_panel()), "text") if "iB" in tick] == [*SIZES]


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_names_are_drawn_as_text(kind: Kind) -> None:
    made = svg_for_page(figure(hostile_panel(kind)))
    assert "<script" not in made and "&lt;script&gt;" in made
    assert "\x00" not in made


def test_a_name_is_no_class_and_no_id() -> None:
    name = 'c1" id="x" url(#y) {{ 7 }}'
    made = figure(panel_of("lines", series_of("lines", 2, name), series_of("lines", 2, "b")))
    assert legend_of(made) == [name, "b"]
    assert not any("id" in element.attrib for element in parsed(made).iter())


def test_the_picture_is_described_and_has_no_colours_of_its_own() -> None:
    text = svg_for_page(figure(panel_of("lines", series_of("lines", 2))))
    made = ElementTree.fromstring(text)
    (picture,) = [part for part in made.iter("div") if part.get("role") == "img"]
    assert (picture.get("aria-label"), picture.get("tabindex")) == ("what it shows", "0")
    assert "http" not in text and not re.search(r"#[0-9a-f]{3,6}\b", text)
