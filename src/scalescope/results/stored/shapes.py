"""Shapes of stored JSON: which types its parts have, so that readers get what they expect or nothing.

A shape is a type, a list with one shape for all members, a mapping of names to shapes, or a mapping with
`ANY_KEY` for all other names; a `Row` is of no use without some of its names. Names that a shape does not
have are not checked: later versions add some. None fits every shape: it means unknown.
"""

from collections.abc import Callable, Mapping
from typing import Any

ANY_KEY = "*"
NUMBER = float  # whole numbers are numbers too
LARGEST_NUMBER = 1e39  # more than a 32-bit float holds; its powers are still numbers
Shape = type | list[Any] | Mapping[str, Any]
_NAMES = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}


class Row(dict[str, Any]):
    """A mapping of names to shapes that is left out where a required name is missing or does not fit."""

    def __init__(self, shape: Mapping[str, Any], *required: str) -> None:
        super().__init__(shape)
        self.required = required


def misfit(value: object, shape: Shape, name: str) -> str | None:
    """The first part that does not fit, in words; None where all do."""
    misfits: list[str] = []
    fitting(value, shape, name, misfits.append)
    return misfits[0] if misfits else None


def fitting(value: object, shape: Shape, name: str, warn: Callable[[str], None]) -> Any:
    """The value without the parts that do not fit, each told to `warn`; None where nothing is left."""
    if value is None:
        return None
    if isinstance(shape, list):
        return _fitting_list(value, shape[0], name, warn)
    if isinstance(shape, Mapping):
        return _fitting_mapping(value, shape, name, warn)
    if _has_type(value, shape):
        return value
    warn(f"{name}: expected {_NAMES[shape]}")
    return None


def _fitting_list(value: object, shape: Shape, name: str, warn: Callable[[str], None]) -> list[Any] | None:
    if not isinstance(value, list | tuple):
        warn(f"{name}: expected a list")
        return None
    members = [fitting(member, shape, f"{name}.{number}", warn) for number, member in enumerate(value)]
    return [member for member in members if member is not None]


def _fitting_mapping(
    value: object, shape: Mapping[str, Any], name: str, warn: Callable[[str], None]
) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        warn(f"{name}: expected an object")
        return None
    kept: dict[str, Any] = {}
    for key, member in value.items():
        expected = shape.get(key, shape.get(ANY_KEY))
        part = f"{name}.{key[:60]}" if name else key[:60]
        fits = member if expected is None else fitting(member, expected, part, warn)
        if fits is not None or member is None:
            kept[key] = fits
    for key in shape.required if isinstance(shape, Row) else ():
        if kept.get(key) is None:
            if value.get(key) is None:  # one that does not fit has been told
                warn(f"{name}: {key} is missing")
            return None
    return kept


def _has_type(value: object, kind: type) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and abs(value) <= LARGEST_NUMBER
    if kind is int:
        return isinstance(value, int) and abs(value) <= LARGEST_NUMBER
    return isinstance(value, kind)
