"""The page in a browser: it loads nothing else, has every chapter, and reacts to mouse and keyboard."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scalescope.studies.report import ReportOptions, report
from tests.browser.opened import LAUNCHES, Opened
from tests.builders.runs import make_runs

pytestmark = pytest.mark.browser
CHAPTERS = [
    "verdict", "levers", "waterfall", "findings", "scaling", "data", "collectives", "steps", "memory",
    "environment", "trials", "glossary",
]  # fmt: skip


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("page")
    written = report([make_runs(root / "runs")], root / "out", ReportOptions(formats=("html",)))
    return written.files[0].as_uri()


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Any]:
    """Opens the page; the context's settings are playwright's."""
    made: list[Opened] = []

    def open_page(**context: Any) -> Opened:
        made.append(Opened(browser, address, **context))
        return made[-1]

    yield open_page
    for page in made:
        page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_complete_logs_nothing_and_loads_nothing_else(
    opened: Any, address: str, tmp_path: Path, scheme: str
) -> None:
    view = opened(color_scheme=scheme)
    view.keep(f"page_{scheme}", tmp_path)
    assert view.messages == []
    assert view.requests == [address]
    sections = view.page.locator("main > section")
    assert [section.get_attribute("id") for section in sections.all()] == CHAPTERS
    assert all(section.is_visible() for section in sections.all())


def test_every_figure_is_visible_and_has_a_description_and_a_table(opened: Any) -> None:
    figures = opened().page.locator("figure").all()
    assert len(figures) >= 12
    for figure in figures:
        assert figure.get_by_role("img").first.bounding_box()["height"] > 50
        assert len(figure.locator("[role=img]").get_attribute("aria-label")) > 20
        assert figure.locator("table tbody tr").count() > 0


def test_both_schemes_can_be_read(opened: Any) -> None:
    light, dark = opened(color_scheme="light"), opened(color_scheme="dark")
    assert light.colour("backgroundColor") == "rgb(246, 247, 249)"
    assert dark.colour("backgroundColor") == "rgb(13, 16, 20)"
    for view in (light, dark):
        assert contrast(view.colour("backgroundColor"), view.colour("color")) > 7.0
    inks = [
        view.page.locator("figure svg text").first.evaluate("e => getComputedStyle(e).fill")
        for view in (light, dark)
    ]
    assert inks[0] != inks[1]


def test_the_button_switches_between_light_and_dark(opened: Any) -> None:
    view = opened(color_scheme="light")
    before = view.colour("backgroundColor")
    view.page.get_by_role("button", name="Light or dark").click()
    assert view.colour("backgroundColor") != before
    view.page.get_by_role("button", name="Light or dark").press("Enter")
    assert view.colour("backgroundColor") == before


def test_a_click_sorts_a_table_and_another_turns_it_round(opened: Any) -> None:
    view = opened()
    heading = view.page.locator(f"{LAUNCHES} th", has_text="step ms")
    measured = [float(cell) for cell in view.column(6) if cell != "—"]
    heading.get_by_role("button").click()
    up = view.column(6)
    assert heading.get_attribute("aria-sort") == "ascending"
    assert [float(cell) for cell in up if cell != "—"] == sorted(measured) != measured
    heading.get_by_role("button").click()
    down = view.column(6)
    assert heading.get_attribute("aria-sort") == "descending"
    assert [float(cell) for cell in down if cell != "—"] == sorted(measured, reverse=True)
    assert up[-1] == down[-1] == "—"


def test_the_keyboard_sorts_as_well(opened: Any) -> None:
    view = opened()
    before = view.column(2)
    button = view.page.locator(f"{LAUNCHES} th", has_text="trial").get_by_role("button")
    button.focus()
    view.page.keyboard.press("Enter")
    ascending = view.column(2)
    assert sorted(ascending) == sorted(before) and ascending != before
    view.page.keyboard.press("Space")
    assert view.column(2)[0] == ascending[-1]


def test_sizes_are_sorted_by_what_they_mean(opened: Any) -> None:
    view = opened()
    table = view.page.locator("#collectives figure").first.locator("table").first
    view.page.locator("#collectives figure").first.locator("summary").click()
    table.locator("th").first.get_by_role("button").click()
    sizes = table.locator("tbody tr td:first-child").all_inner_texts()
    assert sizes[0] == "1.00 KiB" and sizes[-1].endswith("MiB")
    assert [size.split()[1] for size in sizes] == sorted(size.split()[1] for size in sizes)


def test_the_keyboard_reaches_links_and_opens_details(opened: Any) -> None:
    view = opened()
    view.page.keyboard.press("Tab")
    assert view.page.evaluate("document.activeElement.className") == "theme"
    view.page.keyboard.press("Tab")
    view.page.keyboard.press("Enter")
    assert view.page.url.endswith("#verdict")
    details = view.page.locator("figure details").first
    details.locator("summary").press("Enter")
    assert details.locator("table").first.is_visible()


@pytest.mark.parametrize("width", [400, 320])
def test_a_narrow_window_never_scrolls_sideways(opened: Any, tmp_path: Path, width: int) -> None:
    view = opened(viewport={"width": width, "height": 800})
    view.page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    view.keep(f"page_{width}", tmp_path)
    assert view.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (400, "dark"), (1280, "light")])
def test_figures_are_no_wider_than_the_window_and_can_be_read(
    opened: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    view = opened(viewport={"width": width, "height": 800}, color_scheme=scheme)
    view.keep(f"figures_{width}_{scheme}", tmp_path)
    ends = view.page.evaluate(
        "[...document.querySelectorAll('.drawing, .drawing *')].map((e) => e.getBoundingClientRect())"
        ".filter((box) => box.width).map((box) => [box.left, box.right])"
    )
    assert len(ends) > 500
    assert min(left for left, _ in ends) >= 0 and max(right for _, right in ends) <= width
    sizes = view.page.evaluate(
        "[...document.querySelectorAll('.drawing text, .drawing span, .drawing label')]"
        ".map((e) => parseFloat(getComputedStyle(e).fontSize) * (e.getCTM ? e.getScreenCTM().a : 1))"
    )
    assert min(sizes) >= 11.0


def shown_shapes(drawing: Any, name: str) -> int:
    count = """(drawing, name) => [...drawing.querySelectorAll(`.picture ${name}`)]
        .filter((shape) => shape.getClientRects().length).length"""
    return int(drawing.evaluate(count, name))


@pytest.mark.parametrize("scripts", [True, False])
def test_a_legend_switches_its_series_with_and_without_scripts(opened: Any, *, scripts: bool) -> None:
    view = opened(java_script_enabled=scripts)
    drawing = view.page.locator("#scaling figure .drawing").first
    boxes = drawing.get_by_role("group").get_by_role("checkbox")
    before = [shown_shapes(drawing, f".k{number}") for number in range(3)]
    assert boxes.count() == 3 and all(before)
    boxes.nth(1).focus()
    view.page.keyboard.press("Space")
    assert [shown_shapes(drawing, f".k{number}") for number in range(3)] == [before[0], 0, before[2]]
    view.page.keyboard.press("Space")
    assert [shown_shapes(drawing, f".k{number}") for number in range(3)] == before


def test_the_arrow_keys_go_from_value_to_value(opened: Any) -> None:
    view = opened()
    picture = view.page.locator("#scaling figure .picture").first
    values = [mark.get_attribute("data-values") for mark in picture.locator("[data-values]").all()]
    tip = view.page.locator("#values")
    picture.focus()
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End"):
        view.page.keyboard.press(key)
        seen.append(tip.inner_text())
    assert seen == [values[0], values[1], values[0], values[-1]]
    view.page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_every_table_fits_a_window_of_1280_pixels(opened: Any) -> None:
    view = opened(viewport={"width": 1280, "height": 800})
    view.page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    widths = view.page.evaluate(
        "[...document.querySelectorAll('.scroll')].map((e) => [e.ariaLabel, e.scrollWidth, e.clientWidth])"
    )
    assert [name for name, needed, room in widths if needed > room] == []
    assert view.page.evaluate("document.documentElement.scrollWidth") <= 1280


@pytest.mark.parametrize("chapter", ["verdict", "scaling", "data", "steps", "levers", "collectives"])
def test_pointing_at_a_mark_shows_its_values(opened: Any, chapter: str) -> None:
    view = opened()
    mark = view.page.locator(f"#{chapter} figure svg [data-values]").first
    tip = view.page.locator("#values")
    assert not tip.is_visible()
    mark.hover()
    assert tip.inner_text() == mark.get_attribute("data-values")
    assert any(letter.isdigit() for letter in tip.inner_text())
    view.page.mouse.move(0, 0)
    assert not tip.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_is_white_and_nothing_is_cut_off(opened: Any, tmp_path: Path, scheme: str) -> None:
    view = opened(color_scheme=scheme, viewport={"width": 718, "height": 1000})
    view.page.emulate_media(media="print")
    view.keep(f"print_{scheme}", tmp_path)
    assert view.colour("backgroundColor") == "rgb(255, 255, 255)"
    assert view.colour("color") == "rgb(0, 0, 0)"
    assert not view.page.locator("nav").is_visible()
    assert view.page.evaluate("document.documentElement.scrollWidth") <= 718
    assert len(view.page.pdf(format="A4")) > 10_000


def test_a_term_is_explained_to_the_mouse_and_to_the_keyboard(opened: Any) -> None:
    view = opened()
    term = view.page.locator("#verdict abbr").first
    meaning = term.get_attribute("title")
    assert len(meaning) > 20
    assert shown_after(term) == "none"
    term.focus()
    assert view.page.evaluate("document.activeElement.tagName") == "ABBR"
    assert shown_after(term) == f'"{meaning}"'
    view.page.keyboard.press("Tab")
    assert shown_after(term) == "none"


def test_the_heading_of_a_column_is_explained_when_its_button_has_the_focus(opened: Any) -> None:
    view = opened()
    heading = view.page.locator("#scaling th", has_text="efficiency").first
    heading.get_by_role("button").focus()
    view.page.keyboard.press("Shift+Tab")
    view.page.keyboard.press("Tab")
    term = heading.locator("abbr")
    assert shown_after(term) == f'"{term.get_attribute("title")}"'


def test_the_first_screen_leads_to_the_glossary(opened: Any) -> None:
    view = opened()
    link = view.page.get_by_role("navigation").get_by_role("link", name="Glossary")
    box = link.bounding_box()
    assert box["y"] + box["height"] < 900
    link.press("Enter")
    assert view.page.url.endswith("#glossary")
    assert view.page.locator("#glossary dt").first.is_visible()


def test_terms_are_printed_as_plain_words(opened: Any) -> None:
    view = opened()
    view.page.emulate_media(media="print")
    term = view.page.locator("#verdict abbr").first
    term.focus()
    assert term.evaluate("e => getComputedStyle(e).textDecorationLine") == "none"
    assert term.evaluate("e => getComputedStyle(e, '::after').display") == "none"


def shown_after(term: Any) -> str:
    """What the style sheet writes after a term: its tooltip, or none."""
    return str(term.evaluate("e => getComputedStyle(e, '::after').content"))


def contrast(colour: str, other: str) -> float:
    """The contrast of two colours, as the guidelines for readable pages count it."""
    bright = sorted((luminance(colour), luminance(other)))
    return (bright[1] + 0.05) / (bright[0] + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
