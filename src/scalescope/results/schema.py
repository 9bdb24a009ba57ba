"""Validates results that come from files, and publishes their JSON Schema."""

import functools
import json
import math
from typing import Any

from pydantic import TypeAdapter, ValidationError

from scalescope.results.result import SCHEMA_VERSION, Result


@functools.cache
def _adapter() -> TypeAdapter[Result]:
    return TypeAdapter(Result)


def parse_result(line: bytes) -> Result:
    """One line of trials.jsonl; a ValueError says what is wrong with it."""
    try:
        result = _adapter().validate_json(line)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the line"
        raise ValueError(f"{where}: {first['msg']}") from None
    if result.schema_version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise ValueError(f"schema {result.schema_version} is not {SCHEMA_VERSION}")
    _check_numbers(result)
    return result


def _check_numbers(result: Result) -> None:
    """Refuse what the types allow and no measurement gives."""
    for name, value in result.settings.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"settings.{name}: not a finite number")
    for record in result.ranks:
        for name, values in record.samples.items():
            if name.endswith("_s") and any(value < 0.0 for value in values):
                raise ValueError(f"rank {record.rank}: {name}: a negative time")
    if result.status == "ok" and result.settings.get("benchmark") == "train":
        steps = [record.samples.get("step_time_s", []) for record in result.ranks]
        if not steps or not all(steps) or not all(all(times) for times in steps):
            raise ValueError("a launch that is ok has step times above 0 of every rank")
        if len({len(times) for times in steps}) > 1 or len(steps) != result.settings.get("world_size"):
            raise ValueError("a launch that is ok has as many steps of every rank, and all ranks")


def result_schema() -> dict[str, Any]:
    """JSON Schema of one line of trials.jsonl."""
    schema = _adapter().json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"scalescope result {SCHEMA_VERSION}"
    return schema


def schema_text() -> str:
    return json.dumps(result_schema(), indent=2)
