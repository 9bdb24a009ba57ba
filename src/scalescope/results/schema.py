"""Validates results that come from files, and publishes their JSON Schema."""

import functools
import json
from typing import Any

from pydantic import TypeAdapter

from scalescope.results.result import SCHEMA_VERSION, Result


@functools.cache
def _adapter() -> TypeAdapter[Result]:
    return TypeAdapter(Result)


def parse_result(line: bytes) -> Result:
    """One line of trials.jsonl; a ValueError says what is wrong with it."""
    result = _adapter().validate_json(line)
    if result.schema_version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise ValueError(f"schema {result.schema_version} is newer than {SCHEMA_VERSION}")
    return result


def result_schema() -> dict[str, Any]:
    """JSON Schema of one line of trials.jsonl."""
    schema = _adapter().json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"scalescope result {SCHEMA_VERSION}"
    return schema


def schema_text() -> str:
    return json.dumps(result_schema(), indent=2)
