"""What is checked of stored launches, and what stays of JSON with parts that do not fit."""

import copy
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from scalescope.experiment.trial import Trial
from scalescope.results.result import to_json
from scalescope.results.schema import parse_result
from scalescope.results.stored.records import check_settings, without_misfits
from tests.builders.lines import TRIAL, line_of, make_result

TABLES: dict[str, list[dict[str, Any]]] = {
    "gradients": [{"parameter": 0, "size_bytes": 8, "ready_s": 0.01}],
    "units": [
        {"name": "a", "parameter_bytes": 8, "forward_s": 0.1, "backward_s": 0.2, "activation_bytes": 4}
    ],
    "synchronizations": [{"file": "t.py", "line": 3, "per_step": 1.0, "time_s": None, "from_trace": False}],
    "of_a_later_version": [{"anything": None}],
}
REQUIRED = [
    (table, name)
    for table, (row,) in TABLES.items()
    for name in row
    if name not in ("time_s", "from_trace", "anything")
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
        where = rf"rank 0: {table}\.1\.{name}|ranks\.0\.tables\.{table}\.1"
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


@pytest.mark.parametrize(
    "telemetry",
    [
        {"gpus": None},
        {"gpus": {"GPU-1": {"power_w": [1.0, "2"]}}},
        {"gpus": {"GPU-1": {"power_limit_w": 1e300}}},
        {"cpu": {"host_utilization": True}},
        {"load": {"cores": 1.5}},
        {"infiniband": {"mlx5_0/1": {"symbol_error": []}}},
        {"hosts": {"n1": {"gpu_problem": 3}}},
    ],
)
def test_telemetry_of_other_types_is_refused(telemetry: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^telemetry: {next(iter(telemetry))}"):
        parse_result(line_of(telemetry=telemetry).encode())
    parse_result(line_of(telemetry={"added": 1, "cpu": {}, "gpus": {"GPU-1": {"power_w": [1]}}}).encode())


@dataclass(kw_only=True)
class Card:
    name: str
    memory: float | None = None
    links: tuple[int, int] | None = None


@dataclass(kw_only=True)
class Node:
    name: str | None = None
    cores: int = 1
    cards: tuple[Card, ...] = ()
    sizes: dict[int, str] = field(default_factory=dict)
    card: Card | None = None


A = {"name": "a", "memory": 3}
WHOLE = {"name": None, "cores": 2, "cards": [A, {"name": "b"}], "sizes": {"3": "x"}, "card": A, "more": [{}]}
WITHOUT_CORES = {name: part for name, part in WHOLE.items() if name != "cores"}
WITHOUT_CARD = {name: part for name, part in WHOLE.items() if name != "card"}


def cleaned(value: Any) -> tuple[Any, list[str]]:
    """What stays of a value, and what is told."""
    warnings: list[str] = []
    kept = without_misfits(Node, value, "the file", warnings.append)
    return None if kept is None else value, warnings


def test_what_fits_stays_as_it_is() -> None:
    assert cleaned(copy.deepcopy(WHOLE)) == (WHOLE, [])


@pytest.mark.parametrize(
    ("change", "named", "kept"),
    [
        ({"cores": "2"}, "cores: Input should be a valid integer", WITHOUT_CORES),
        ({"cores": True}, "cores: Input should be a valid integer", WITHOUT_CORES),
        ({"cores": None}, "cores: Input should be a valid integer", WITHOUT_CORES),
        ({"cards": [3, A, None]}, "cards.0: Input should be an object", {**WHOLE, "cards": [A]}),
        ({"cards": [{}, A]}, "cards.0.name: Field required", {**WHOLE, "cards": [A]}),
        (
            {"cards": [A, {"name": 7}]},
            "cards.1.name: Input should be a valid string",
            {**WHOLE, "cards": [A]},
        ),
        ({"cards": [{**A, "links": [1]}]}, "cards.0.links.1: Field required", {**WHOLE, "cards": [A]}),
        ({"cards": [{**A, "links": [1, "2"]}]}, "cards.0.links.1: Input", {**WHOLE, "cards": [A]}),
        ({"sizes": {"x": "y", "3": "x"}}, "sizes.x.[key]: Input should be a valid integer", WHOLE),
        ({"card": {"memory": "x", "name": 3}}, "card.memory: Input should be a valid number", WITHOUT_CARD),
    ],
)
def test_what_does_not_fit_is_left_out_and_named(
    change: dict[str, Any], named: str, kept: dict[str, Any]
) -> None:
    left, warnings = cleaned(copy.deepcopy({**WHOLE, **change}))
    assert left == kept
    assert sum(warning.startswith(named) for warning in warnings) == 1
    places = {warning.partition(": ")[0] for warning in warnings}
    assert len(places) == len(warnings)


@pytest.mark.parametrize("value", [[], "text", 3, True])
def test_what_is_no_object_at_all_is_nothing(value: object) -> None:
    assert cleaned(value) == (None, ["the file: Input should be an object"])


def test_what_is_broken_throughout_is_told_in_one_line() -> None:
    assert cleaned({"cards": [0] * 20_000}) == (None, ["the file: too much is broken"])
