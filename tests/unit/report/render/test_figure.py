"""Figures as data: the tables behind them hold what is drawn."""

import pytest

from scalescope.report.numbers import MISSING
from scalescope.report.section import Panel, Series, quantiles


def panel(kind: str, *series: Series, **others: object) -> Panel:
    values = {"x_label": "ranks", "y_label": "samples per second", **others}
    return Panel(kind=kind, series=series, **values)  # type: ignore[arg-type]


def test_a_table_of_lines_has_a_row_for_every_place_of_any_line() -> None:
    first = Series(label="a", x=(1.0, 2.0), y=(10.0, 18.0), low=(None, 17.0), high=(None, 19.0))
    other = Series(label="b", x=(2.0, 4.0), y=(7.0, 12345.6))
    table = panel("lines", first, other).table()
    assert table.columns == ("ranks", "a", "b")
    assert table.rows == (
        ("1", "10.00", MISSING),
        ("2", "18.00 [17.00, 19.00]", "7.000"),
        ("4", MISSING, "12,346"),
    )


def test_a_line_that_is_drawn_without_a_name_has_no_column() -> None:
    table = panel(
        "lines",
        Series(label="a", x=(1.0,), y=(2.0,)),
        Series(label="ideal", x=(1.0,), y=(3.0,), in_legend=False),
    )
    assert table.table().columns == ("ranks", "a")


def test_sizes_are_shown_with_units() -> None:
    table = panel("lines", Series(label="a", x=(1024.0,), y=(2.0,)), x_in_bytes=True).table()
    assert table.rows[0][0] == "1.00 KiB"


def test_names_of_bars_stand_in_one_line() -> None:
    bars = panel("bars", Series(label="a", x=(0.0,), y=(2.0,)), names=("1 rank\nbatch 8",))
    assert bars.table().rows == (("1 rank, batch 8", "2.000"),)


def test_a_table_of_a_forest_names_the_group_and_the_interval() -> None:
    forest = panel(
        "forest", Series(label="faster", x=(1.5,), y=(1.0,), low=(1.4,), high=(1.6,)), names=("a", "b")
    )
    assert forest.table().rows == (("b", "faster", "1.500 [1.400, 1.600]"),)


def test_a_table_of_distributions_has_a_column_for_every_share() -> None:
    table = panel("distribution", Series(label="a", x=(0.05, 0.5), y=(1.0, 2.0))).table()
    assert (table.columns, table.rows) == (("name", "5 %", "50 %"), (("a", "1.00", "2.00"),))


def test_a_table_of_a_timeline_has_start_and_end_times() -> None:
    second = Series(label="compute", row=1, x=(0.0,), y=(1.5,))
    table = panel("timeline", second, names=("rank 0", "rank 1")).table()
    assert table.rows == (("rank 1", "compute", "0", "1.50"),)


@pytest.mark.parametrize("kind", ["lines", "bars", "stacked", "forest", "distribution", "timeline"])
def test_a_panel_without_series_has_an_empty_table(kind: str) -> None:
    assert panel(kind).table().rows == ()


def test_a_long_table_ends_somewhere() -> None:
    many = Series(label="a", x=tuple(map(float, range(1000))), y=(1.0,) * 1000)
    assert len(panel("lines", many).table().rows) == 200


def test_quantiles_lie_between_the_values() -> None:
    assert quantiles([3.0, 1.0, 2.0], (0.0, 0.25, 0.5, 1.0)) == (1.0, 1.5, 2.0, 3.0)
    assert quantiles([7.0], (0.05, 0.5, 0.95)) == (7.0, 7.0, 7.0)
