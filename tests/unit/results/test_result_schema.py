"""The published JSON Schema describes what is really written."""

import dataclasses
import json
from typing import Any

import pytest

from scalescope.results.result import SCHEMA_VERSION, Result, to_json
from scalescope.results.schema import parse_result, result_schema, schema_text
from tests.builders.lines import line_of, make_result

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}
SAYS_NOTHING = {"title", "description", "default", "$schema", "$defs"}


def problems(value: Any, schema: Any, whole: dict[str, Any], where: str = "record") -> list[str]:
    """What a value violates, by the part of JSON Schema that the published one uses."""
    if schema is True:
        return []
    if "$ref" in schema:
        return problems(value, whole["$defs"][schema["$ref"].removeprefix("#/$defs/")], whole, where)
    unknown = (
        set(schema)
        - SAYS_NOTHING
        - {
            "type",
            "anyOf",
            "enum",
            "properties",
            "required",
            "items",
            "additionalProperties",
        }
    )
    assert not unknown, f"{where}: this check does not know {unknown}"
    failures = []
    if "type" in schema and (not isinstance(value, TYPES[schema["type"]]) or isinstance(value, bool)):
        return [f"{where}: not a {schema['type']}"]
    if "enum" in schema and value not in schema["enum"]:
        failures.append(f"{where}: not one of {schema['enum']}")
    if "anyOf" in schema and all(
        problems(value, alternative, whole, where) for alternative in schema["anyOf"]
    ):
        failures.append(f"{where}: fits no alternative")
    if isinstance(value, dict):
        failures += [f"{where}: lacks {name}" for name in schema.get("required", ()) if name not in value]
        for name, member in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties", True))
            failures += problems(member, inner, whole, f"{where}.{name}")
    if isinstance(value, list) and "items" in schema:
        for number, member in enumerate(value):
            failures += problems(member, schema["items"], whole, f"{where}[{number}]")
    return failures


def check(record: dict[str, Any]) -> list[str]:
    schema = result_schema()
    return problems(json.loads(json.dumps(record)), schema, schema)


def test_real_records_fit_the_schema() -> None:
    assert check(to_json(make_result())) == []
    assert check(to_json(make_result(status="hang", reason="why", rank=1, step=2, log="a", ranks=[]))) == []


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
def test_what_the_reader_refuses_the_schema_refuses(change: dict[str, Any]) -> None:
    assert check({**to_json(make_result()), **change}) != []
    (name,) = change
    with pytest.raises(ValueError, match=rf"^{name}[.:]"):
        parse_result(line_of(**change).encode())


def test_the_schema_names_its_version() -> None:
    published = json.loads(schema_text())
    assert published["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert published["title"] == f"scalescope result {SCHEMA_VERSION}"


def test_a_record_is_the_same_after_writing_and_reading() -> None:
    result = make_result(notes=["a"], telemetry={"clock_hz": [1e9]}, log="logs/x")
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
    assert problems(json.loads(text), result_schema(), result_schema()) == []


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
    assert problems(record, result_schema(), result_schema())
