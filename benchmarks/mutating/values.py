"""Values that no measurement stores, and changes of JSON records by them."""

import copy
import json
import random
from typing import Any

DIGITS = "9" * 5_000
SCRIPT = '</script><script>document.title="ran"</script><img src=x onerror=alert(1)>'
WORDS = (
    "",
    " ",
    "\0",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202eright to left",
    "\ud800",
    "a" * 300,
    "b" * 100_000,
    "../../outside/secret.json",
    "/dev/zero",
    "/etc/passwd",
    "..",
    "-1",
    "1e999",
    "nan",
    "=1+1",
    "{0.__class__}",
    "%s%n",
    "javascript:alert(1)",
    "line\nbreak\r\n",
    "\\input{/etc/passwd}",
    SCRIPT,
    "$(touch ran)",
    "2026-13-45T99:99:99",
    "9999-12-31T23:59:59+00:00",
    "0001-01-01T00:00:00+14:00",
)
NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, -(2**31), 2**31, 2**63, -(2**63), 10**18, 10**30, 10**400),
    *(0.0, -0.0, 0.5, -1.5, 1e-320, 1e-9, 1e9, 1e300, -1e300, float("nan"), float("inf"), float("-inf")),
)
OTHERS: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], [None], {"": None}, {"a": {"b": {"c": []}}}, [1, "2", None, 3.5],
    ["a", "b"], [{}], {"name": [], "values": 7}, {"values": {"x": 3}, "name": 1}, [0.0] * 1_000,
)  # fmt: skip


def odd_value(rng: random.Random) -> Any:
    """A value of any type."""
    kind = rng.randrange(6)
    if kind == 0:
        return copy.deepcopy(rng.choice(OTHERS))
    if kind in (1, 2):
        return rng.choice(NUMBERS)
    if kind in (3, 4):
        return rng.choice(WORDS)
    return nested(rng.choice((3, 60, 400)))


def nested(depth: int) -> Any:
    """Lists and objects inside each other."""
    value: Any = "deep"
    for level in range(depth):
        value = [value] if level % 2 else {"x": value}
    return value


def to_line(record: Any) -> str:
    """The record as JSON, with what strict writers refuse; a very long number where `DIGITS` stands."""
    return json.dumps(record).replace(json.dumps(DIGITS), DIGITS)


def change_record(record: Any, rng: random.Random) -> Any:
    """A copy of a JSON value with one thing changed at a random place."""
    changed = copy.deepcopy(record)
    parents = [changed]
    chosen: Any = changed
    # Go down a random way, so that short lists and long ones are met alike.
    while isinstance(chosen, dict | list) and chosen and (len(parents) == 1 or rng.random() < 0.75):
        keys = list(chosen) if isinstance(chosen, dict) else range(len(chosen))
        parents.append(chosen)
        chosen = chosen[rng.choice(keys)]
    container = parents[-1]
    if not isinstance(container, dict | list) or not container:
        return odd_value(rng)
    if isinstance(container, dict):
        _change_key(container, rng)
    else:
        _change_member(container, rng)
    return changed


def _change_key(container: dict[str, Any], rng: random.Random) -> None:
    key = rng.choice(list(container))
    kind = rng.randrange(8)
    if kind == 0:
        del container[key]
    elif kind == 1:
        container[rng.choice(WORDS)] = container.pop(key)
    elif kind == 2:
        container[key] = container[rng.choice(list(container))]
    elif kind == 3:
        container[key] = DIGITS
    elif kind == 4 and isinstance(container[key], list):
        container[key] = container[key][: rng.randrange(len(container[key]) + 1)]
    else:
        container[key] = odd_value(rng)


def _change_member(container: list[Any], rng: random.Random) -> None:
    index = rng.randrange(len(container))
    kind = rng.randrange(5)
    if kind == 0:
        del container[index]
    elif kind == 1:
        container.insert(index, copy.deepcopy(container[index]))
    elif kind == 2:
        container[:] = [odd_value(rng) for _ in container]
    else:
        container[index] = odd_value(rng)


def hostile(value: Any) -> Any:
    """The same JSON value with a script in every string that is not a key."""
    if isinstance(value, str):
        return f"{value}{SCRIPT}"
    if isinstance(value, dict):
        return {key: hostile(item) for key, item in value.items()}
    return [hostile(item) for item in value] if isinstance(value, list) else value
