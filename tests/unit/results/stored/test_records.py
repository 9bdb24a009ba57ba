"""Tables and profiles of stored launches: a damaged row refuses the launch, and its name is said."""

import json
from typing import Any

import pytest

from scalescope.results.result import to_json
from scalescope.results.schema import parse_result
from tests.builders.lines import line_of, make_result

TABLES: dict[str, list[dict[str, Any]]] = {
    "gradients": [{"parameter": 0, "size_bytes": 8, "ready_s": 0.01}],
    "units": [
        {"name": "a", "parameter_bytes": 8, "forward_s": 0.1, "backward_s": 0.2, "activation_bytes": 4}
    ],
    "kernels": [{"name": "gemm", "time_s": 0.1, "count": 2.0}],
    "synchronizations": [{"file": "t.py", "line": 3, "per_step": 1.0, "time_s": None, "from_trace": False}],
    "of_a_later_version": [{"anything": None}],
}
REQUIRED = [
    (table, name)
    for table, (row,) in TABLES.items()
    for name in row
    if name not in ("time_s", "from_trace", "anything") or table == "kernels"
]


def line_with(table: str, row: dict[str, Any], **counters: Any) -> bytes:
    """A launch with all tables, one of them with this row behind its own."""
    (rank,) = to_json(make_result())["ranks"]
    tables = {**TABLES, table: [*TABLES[table], row]}
    return line_of(ranks=[{**rank, "tables": tables, "counters": counters}]).encode()


def test_whole_tables_are_accepted() -> None:
    for table, (row,) in TABLES.items():
        (rank,) = parse_result(line_with(table, row)).ranks
        assert len(rank.tables[table]) == 2


@pytest.mark.parametrize(("table", "name"), REQUIRED)
@pytest.mark.parametrize("value", ["missing", None, -1, {}, "1e999"])
def test_a_damaged_row_is_named(table: str, name: str, value: object) -> None:
    (row,) = TABLES[table]
    damaged = {**row, name: value}
    if value == "missing":
        del damaged[name]
    if value == "1e999" and isinstance(row[name], str):
        return  # text may be anything
    with pytest.raises(ValueError, match=rf"rank 0: {table}, row 1: {name}|ranks\.0\.tables\.{table}\.1"):
        parse_result(line_with(table, damaged))


@pytest.mark.parametrize("value", ["long", None, -1.0, 1e300])
def test_a_profile_of_other_than_times_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="profile/step_s"):
        parse_result(line_with("units", TABLES["units"][0], **{"profile/step_s": value}))


def test_numbers_of_tables_are_as_bounded_as_counters() -> None:
    row = json.loads('{"step": 1, "gc_s": 1e300}')
    with pytest.raises(ValueError, match="gc_s: a number that is too large"):
        parse_result(line_with("of_a_later_version", row))
