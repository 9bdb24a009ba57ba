"""The published JSON Schema describes what is really written."""

import dataclasses
import json
from typing import Any

import pytest

from scalescope.results.result import SCHEMA_VERSION, Result, Stage, to_json
from scalescope.results.schema import parse_result, result_schema, schema_text
from tests.builders.lines import line_of, make_result


def test_every_field_of_a_record_is_in_the_schema() -> None:
    schema = result_schema()
    record = to_json(make_result())
    assert set(schema["properties"]) == set(record)
    assert set(schema["$defs"]["RankRecord"]["properties"]) == set(record["ranks"][0])


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"},
        {"launch": "first"},
        {"ranks": [{"rank": 0}]},
        {"ranks": {}},
        {"reason": 5},
        {"duration_s": None},
    ],
)
def test_a_record_of_another_shape_is_refused_by_the_name_of_its_field(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(ValueError, match=rf"^{name}[.:]"):
        parse_result(line_of(**change).encode())


def test_the_schema_names_its_version() -> None:
    published = json.loads(schema_text())
    assert published["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert published["title"] == f"scalescope result {SCHEMA_VERSION}"


def test_a_record_is_the_same_after_writing_and_reading() -> None:
    result = make_result(notes=["a"], telemetry={"clock_hz": [1e9]}, log="logs/x", stage=Stage("confirm", 2))
    assert to_json(result) == dataclasses.asdict(result)
    assert to_json(result)["ranks"][0]["samples"] is result.ranks[0].samples  # not copied
    assert parse_result(json.dumps(to_json(result)).encode()) == result


ROWS: list[dict[str, float | int | str | None]] = [
    {"file": "model.py", "line": 31, "per_step": 48.0, "code": None},
    {"file": "loss.py", "line": 2, "per_step": 1.5, "code": "x.item()"},
]


def with_tables() -> Result:
    result = make_result()
    ranks = [
        dataclasses.replace(record, tables={"synchronizations": ROWS, "empty": []}) for record in result.ranks
    ]
    return dataclasses.replace(result, ranks=ranks)


def test_tables_of_facts_are_the_same_after_writing_and_reading() -> None:
    text = json.dumps(to_json(with_tables()))
    assert parse_result(text.encode()) == with_tables()


def test_a_record_from_before_tables_has_none() -> None:
    record = to_json(make_result())
    for rank in record["ranks"]:
        del rank["tables"]
    assert parse_result(json.dumps(record).encode()) == make_result()


@pytest.mark.parametrize("tables", [{"rows": {"line": 1}}, {"rows": [1]}, {"rows": [{"line": [1]}]}, []])
def test_tables_of_anything_else_are_refused(tables: Any) -> None:
    record = to_json(make_result())
    record["ranks"][0]["tables"] = tables
    with pytest.raises(ValueError):
        parse_result(json.dumps(record).encode())
