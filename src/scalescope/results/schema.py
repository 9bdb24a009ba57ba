"""Validates results that come from files, and publishes their JSON Schema."""

import functools
import itertools
import json
import math
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from scalescope.results.result import SCHEMA_VERSION, Result
from scalescope.results.stored.files import LARGEST_NUMBER
from scalescope.results.stored.records import check_settings, problem_of

_LONGEST_S, _SHORTEST_S = 1e9, 1e-12
_LARGEST_COUNT = 1 << 40
NOT_A_RESULT = "not a result"
_START = 64  # bytes at the start of a line; one of them begins the object


@functools.cache
def _adapter() -> TypeAdapter[Result]:
    return TypeAdapter(Result)


def parse_result(line: bytes) -> Result:
    """One line of trials.jsonl; a ValueError says what is wrong with it."""
    from scalescope.results.stored.records import check_records  # models, which take long to load

    if not line[:_START].lstrip().startswith(b"{"):  # padding of a damaged disk is not searched
        raise ValueError(NOT_A_RESULT)
    try:
        result = _adapter().validate_json(line)
    except ValidationError as error:
        raise ValueError(problem_of(error, "the line")) from None
    if _major(result.schema_version) != _major(SCHEMA_VERSION):
        raise ValueError(f"schema {result.schema_version} is not {SCHEMA_VERSION}")
    _check_numbers(result)
    _check_times(result)
    check_settings(result.trial_id, result.settings)
    check_records(result)
    return result


def _major(version: str) -> str:
    return version.partition(".")[0]


def _check_numbers(result: Result) -> None:
    """Refuse what the types allow and no measurement gives."""
    for name, value in result.settings.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"settings.{name}: not a finite number")
    for record in result.ranks:
        for name, values in record.samples.items():
            least, most = (min(values), max(values)) if values else (0.0, 0.0)
            if name.endswith("_s") and least < 0.0:
                raise ValueError(f"rank {record.rank}: {name}: a negative time")
            if name.endswith("_s") and (most > _LONGEST_S or 0.0 < least < _SHORTEST_S):
                raise ValueError(f"rank {record.rank}: {name}: not a plausible time")
            if not -LARGEST_NUMBER <= least <= most <= LARGEST_NUMBER:
                raise ValueError(f"rank {record.rank}: {name}: a number that is too large")
        rows = [row for table in record.tables.values() for row in table]
        for name, value in itertools.chain(record.counters.items(), *(row.items() for row in rows)):
            largest = _LONGEST_S if name.endswith("_s") else LARGEST_NUMBER
            if isinstance(value, int | float) and not abs(value) <= largest:
                raise ValueError(f"rank {record.rank}: {name[:60]}: a number that is too large")
    if result.status == "ok" and result.settings.get("benchmark") == "train":
        steps = [record.samples.get("step_time_s", []) for record in result.ranks]
        if not steps or not all(steps) or not all(all(times) for times in steps):
            raise ValueError("a successful launch has positive step times for every rank")
        if len({len(times) for times in steps}) > 1 or len(steps) != result.settings.get("world_size"):
            raise ValueError("a successful launch has all ranks, each with the same number of steps")


def _check_times(result: Result) -> None:
    """Refuse moments and durations that no clock shows."""
    if not 0.0 <= result.duration_s <= _LONGEST_S:
        raise ValueError("duration_s: not a duration")
    try:
        year = datetime.fromisoformat(result.started_at).year
    except ValueError:
        raise ValueError("started_at: not a date and time") from None
    if not 1970 <= year < 9999:
        raise ValueError("started_at: not a date and time")
    if not 0 <= result.launch <= _LARGEST_COUNT or not 0 <= result.order <= _LARGEST_COUNT:
        raise ValueError("launch: not a launch number")


def result_schema() -> dict[str, Any]:
    """JSON Schema of one line of trials.jsonl."""
    schema = _adapter().json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"scalescope result {SCHEMA_VERSION}"
    return schema


def schema_text() -> str:
    return json.dumps(result_schema(), indent=2)
