"""What differs between two recordings, as tables and as data."""

import json

import pytest

from scalescope.analysis.trace.changes import JobChanges, compare_jobs
from scalescope.report.section import Section
from scalescope.report.trace.changes import changes_json, changes_sections
from tests.builders.rank_traces import alone, operation, step

KERNEL = "void at::native::vectorized_elementwise_kernel<4, int>(int)"


def changes() -> JobChanges:
    before = alone(
        step(), operations=(operation("aten::mm", "[8,8] [8,8]", gpu_s=0.02), operation(KERNEL, gpu_s=0.01))
    )
    after = alone(
        step(0.12, idle_host_s=0.02),
        operations=(operation("aten::mm", "[8,8] [8,8]", gpu_s=0.0201), operation("aten::gelu", gpu_s=0.03)),
    )
    return compare_jobs(before, after)


def rows_of(section: Section) -> list[tuple[str, ...]]:
    assert section.table is not None
    return [tuple(row) for row in section.table.rows]


def test_what_appeared_and_vanished_is_shown_and_what_hardly_changed_is_not() -> None:
    _, parts, operations = changes_sections(changes())
    assert [row[0] for row in rows_of(parts)] == ["idle, the host launches too late"]
    shown = rows_of(operations)
    assert [(row[0], row[-1]) for row in shown] == [
        ("aten::gelu", "new → 10"),
        ("vectorized_elementwise_kernel", "10 → gone"),
    ]
    assert shown[0][1:3] == ("—", "30.0")


def test_as_data_every_change_is_there() -> None:
    data = changes_json(changes())
    assert json.loads(json.dumps(data)) == data
    assert (data["before"]["step_s"], data["after"]["step_s"]) == pytest.approx((0.1, 0.12))
    by_name = {row["name"]: row for row in data["operations"]}
    assert (by_name["aten::gelu"]["before_s"], by_name["aten::gelu"]["after_per_step"]) == (None, 10.0)
    assert by_name[KERNEL]["after_s"] is None
    assert by_name["aten::mm [8,8] [8,8]"]["after_s"] == 0.0201
