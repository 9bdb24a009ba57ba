"""Stored data checked by pydantic: which part does not fit, and the data without such parts."""

import functools
import json
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")
_LONGEST_NAME = 60
_MOST_PROBLEMS = 10_000
_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)


def problem_of(error: ValidationError, whole: str) -> str:
    """The first part that does not fit, and what was expected; `whole` names what has the parts."""
    return _text(error.errors(include_input=False, include_url=False)[0], whole)


def without_misfits(kind: type[T], value: Any, whole: str, warn: Callable[[str], None]) -> T | None:
    """Take the parts out of a JSON value that do not fit, each told to `warn`; None where nothing is left.

    An object or row without a field that it must have does not fit. `value` itself is changed.
    """
    adapter: TypeAdapter[T] = _adapter(kind)
    is_told = False  # what the second look finds is missing because the first one took it out
    while True:
        try:
            return adapter.validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            if error.error_count() > _MOST_PROBLEMS:
                warn(f"{whole}: too much is broken")
                return None
            problems = error.errors(include_input=False, include_url=False, include_context=False)
        places = {_place(value, problem["loc"]): problem for problem in reversed(problems)}
        for place in sorted(places) if not is_told else ():
            warn(_text(places[place], whole))
        is_told = True
        if () in places:
            return None
        for *parents, last in sorted(places, reverse=True):  # so that members keep their numbers until then
            container = value
            for parent in parents:
                container = container[parent]
            del container[last]


def _place(value: Any, loc: tuple[Any, ...]) -> tuple[Any, ...]:
    """The part that a problem is about; of what is missing, the object that should have it."""
    for depth, name in enumerate(loc):
        try:
            value = value[name]
        except (IndexError, KeyError, TypeError):
            return loc[:depth]
    return loc


def _text(problem: Any, whole: str) -> str:
    where = ".".join(str(name)[:_LONGEST_NAME] for name in problem["loc"])
    return f"{where or whole}: {problem['msg']}"
