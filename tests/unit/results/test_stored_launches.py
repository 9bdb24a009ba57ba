"""What is checked of stored launches: rows of tables, settings, and shapes of JSON."""

import json
from typing import Any

import pytest

from scalescope.experiment.trial import Trial
from scalescope.results.result import to_json
from scalescope.results.schema import parse_result
from scalescope.results.stored.settings import check_settings
from scalescope.results.stored.shapes import ANY_KEY, NUMBER, Row, fitting, misfit
from tests.builders.lines import TRIAL, line_of, make_result

TABLES: dict[str, list[dict[str, Any]]] = {
    "gradients": [{"parameter": 0, "size_bytes": 8, "ready_s": 0.01}],
    "units": [
        {"name": "a", "parameter_bytes": 8, "forward_s": 0.1, "backward_s": 0.2, "activation_bytes": 4}
    ],
    "kernels": [{"name": "gemm", "time_s": 0.1, "count": 2.0}],
    "synchronizations": [{"file": "t.py", "line": 3, "per_step": 1.0, "time_s": None, "from_trace": False}],
    "of_a_later_version": [{"anything": None}],
}
REQUIRED = [
    (table, name)
    for table, (row,) in TABLES.items()
    for name in row
    if name not in ("time_s", "from_trace", "anything") or table == "kernels"
]


def line_with(table: str, row: dict[str, Any], **counters: Any) -> bytes:
    """A launch with all tables, one of them with this row behind its own."""
    (rank,) = to_json(make_result())["ranks"]
    tables = {**TABLES, table: [*TABLES[table], row]}
    return line_of(ranks=[{**rank, "tables": tables, "counters": counters}]).encode()


def test_whole_tables_are_accepted() -> None:
    for table, (row,) in TABLES.items():
        (rank,) = parse_result(line_with(table, row)).ranks
        assert len(rank.tables[table]) == 2


@pytest.mark.parametrize("value", ["missing", None, -1, {}, "1e999"])
def test_a_damaged_row_is_named(value: object) -> None:
    for table, name in REQUIRED:
        (row,) = TABLES[table]
        damaged = {**row, name: value}
        if value == "missing":
            del damaged[name]
        if value == "1e999" and isinstance(row[name], str):
            continue  # text may be anything
        where = rf"rank 0: {table}, row 1: {name}|ranks\.0\.tables\.{table}\.1"
        with pytest.raises(ValueError, match=where):
            parse_result(line_with(table, damaged))


@pytest.mark.parametrize("value", ["long", None, -1.0, 1e300])
def test_a_profile_of_other_than_times_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="profile/step_s"):
        parse_result(line_with("units", TABLES["units"][0], **{"profile/step_s": value}))


def test_numbers_of_tables_are_as_bounded_as_counters() -> None:
    row = json.loads('{"step": 1, "gc_s": 1e300}')
    with pytest.raises(ValueError, match="gc_s: a number that is too large"):
        parse_result(line_with("of_a_later_version", row))


def check(settings: dict[str, Any]) -> None:
    """With the id that the settings give, where they give one."""
    try:
        trial_id = Trial(settings=settings).trial_id
    except Exception:
        trial_id = TRIAL.trial_id
    check_settings(trial_id, settings)


def test_a_planned_trial_is_accepted() -> None:
    check_settings(TRIAL.trial_id, TRIAL.settings)


def test_another_id_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^trial_id: the settings have another one"):
        check_settings("0123456789ab", TRIAL.settings)
    with pytest.raises(ValueError, match=r"^trial_id"):
        check_settings(TRIAL.trial_id, {**TRIAL.settings, "batch_size": 5})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("benchmark", "nothing"),
        ("benchmark", None),
        ("benchmark", ["train"]),
        ("batch_size", "4"),
        ("batch_size", 0),
        ("batch_size", 10**400),
        ("world_size", True),
        ("world_size", -1),
        ("world_size", 1.5),
        ("strategy", "nothing"),
        ("strategy", {}),
        ("workload", 7),
        ("precision", "fp7"),
        ("device", "tpu"),
        ("env", {"A": 1}),
        ("env", "A=1"),
        ("warmup_steps", "few"),
        ("unknown_setting", {"deep": []}),
    ],
)
def test_values_that_no_card_allows_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"^settings"):
        check({**TRIAL.settings, name: value})


@pytest.mark.parametrize("name", ["benchmark", "strategy", "workload", "device", "world_size", "precision"])
def test_a_missing_setting_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^settings.*({name}|None)"):
        check({key: value for key, value in TRIAL.settings.items() if key != name})


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
