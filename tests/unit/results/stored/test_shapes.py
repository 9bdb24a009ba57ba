"""Shapes of stored JSON: parts of another type are left out and named, all others stay."""

from typing import Any

import pytest

from scalescope.results.stored.shapes import ANY_KEY, NUMBER, Row, fitting, misfit

SHAPE = {"name": str, "cores": int, "gpus": [{"memory": NUMBER}], "nodes": {ANY_KEY: {"cores": int}}}
WHOLE = {"name": "a", "cores": 2, "gpus": [{"memory": 1.5}, {"memory": 3}], "nodes": {"n1": {"cores": 4}}}


def test_what_fits_stays_as_it_is() -> None:
    value = {**WHOLE, "later": [{"any": "thing"}], "name": None}
    assert fitting(value, SHAPE, "", _fail) == value
    assert misfit(WHOLE, SHAPE, "") is None


def _fail(text: str) -> None:
    raise AssertionError(text)


@pytest.mark.parametrize(
    ("change", "named", "kept"),
    [
        ({"cores": "2"}, "cores: expected a whole number", {k: v for k, v in WHOLE.items() if k != "cores"}),
        ({"cores": True}, "cores: expected a whole number", {k: v for k, v in WHOLE.items() if k != "cores"}),
        (
            {"cores": 10**50},
            "cores: expected a whole number",
            {k: v for k, v in WHOLE.items() if k != "cores"},
        ),
        ({"gpus": {}}, "gpus: expected a list", {k: v for k, v in WHOLE.items() if k != "gpus"}),
        ({"gpus": [3, {"memory": 1}]}, "gpus.0: expected an object", {**WHOLE, "gpus": [{"memory": 1}]}),
        ({"nodes": {"n1": []}}, "nodes.n1: expected an object", {**WHOLE, "nodes": {}}),
        ({"gpus": [{"memory": "x"}]}, "gpus.0.memory: expected a number", {**WHOLE, "gpus": [{}]}),
    ],
)
def test_what_does_not_fit_is_left_out_and_named(
    change: dict[str, Any], named: str, kept: dict[str, Any]
) -> None:
    warnings: list[str] = []
    assert fitting({**WHOLE, **change}, SHAPE, "", warnings.append) == kept
    assert warnings == [named]
    assert misfit({**WHOLE, **change}, SHAPE, "") == named


@pytest.mark.parametrize("value", [[], "text", 3, True])
def test_what_is_no_object_at_all_is_nothing(value: object) -> None:
    warnings: list[str] = []
    assert fitting(value, SHAPE, "environment", warnings.append) is None
    assert warnings == ["environment: expected an object"]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"rate": 1.0}, "cards.1: name is missing"),
        ({"name": None}, "cards.1: name is missing"),
        ({"name": 7}, "cards.1.name: expected text"),
    ],
)
def test_a_row_without_what_it_needs_is_left_out_and_named_once(row: dict[str, Any], named: str) -> None:
    shape = {"cards": [Row({"name": str, "rate": NUMBER}, "name")]}
    warnings: list[str] = []
    kept = fitting({"cards": [{"name": "a"}, row]}, shape, "", warnings.append)
    assert kept == {"cards": [{"name": "a"}]}
    assert warnings == [named]
