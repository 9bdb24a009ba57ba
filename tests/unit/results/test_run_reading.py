"""Reading a run back: what is broken is named and left out, the rest is kept."""

import json
from pathlib import Path

import pytest

from scalescope.errors import BadInput
from scalescope.results.result import to_json
from scalescope.results.run import load_run
from scalescope.results.topology import topologies_of
from tests.builders.lines import TRIAL, line_of, make_result, write_lines

OTHER = TRIAL.replace(batch_size=8)


def launches(folder: Path) -> list[int]:
    return [result.launch for result in load_run(folder).results]


@pytest.mark.parametrize("name", ["experiment.yaml", "trials.jsonl"])
def test_a_run_without_results_is_empty(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    run = load_run(tmp_path)
    assert (run.results, run.warnings, run.environment) == ((), (), {})


def test_a_missing_folder_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such run folder") as caught:
        load_run(tmp_path / "nowhere")
    assert caught.value.exit_code == 2


def test_a_folder_that_is_no_run_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(BadInput, match="contains no run") as caught:
        load_run(tmp_path)
    assert caught.value.exit_code == 2


def test_a_cut_off_last_line_is_dropped_and_reported(tmp_path: Path) -> None:
    write_lines(tmp_path, line_of(launch=0), line_of(launch=1)[:-40], end=b"")
    run = load_run(tmp_path)
    assert launches(tmp_path) == [0]
    assert run.warnings == (f"{tmp_path / 'trials.jsonl'}:2: left out: the line is cut off",)


def test_a_last_line_that_lacks_only_its_newline_counts_and_blank_lines_are_nothing(tmp_path: Path) -> None:
    write_lines(tmp_path, "", line_of(launch=0), "   ", line_of(launch=1), end=b"")
    assert launches(tmp_path) == [0, 1]
    assert load_run(tmp_path).warnings == ()


BROKEN: dict[str, str | bytes] = {
    "words": "this is not JSON",
    "cut": line_of()[:-40],
    "zeros": b"\0" * 300,
    "bytes": b"\xff\xfe" * 20,
    "list": "[]",
    "number": "17",
    "null": "null",
    "empty": "{}",
    "deep": '{"settings":' + "[" * 100_000 + "]" * 100_000 + "}",
    "deep in a record": line_of()[:-1] + ',"telemetry":{"a":' + "[" * 5_000 + "]" * 5_000 + "}}",
    "digits": line_of().replace('"launch": 0', '"launch": ' + "9" * 5_000),
    "digits in samples": line_of().replace("[0.25, 0.5]", "[" + "9" * 5_000 + "]"),
    "not a number": line_of().replace("[0.25, 0.5]", "[NaN, 0.5]"),
    "infinite": line_of().replace("[0.25, 0.5]", "[1e999, 0.5]"),
    "infinite word": line_of().replace("[0.25, 0.5]", "[-Infinity, 0.5]"),
    "not a number as duration": line_of().replace('"duration_s": 1.5', '"duration_s": NaN'),
    "not a number as counter": line_of().replace("1500000000.0", "NaN"),
    "wrong type": line_of(launch="first"),
    "missing": json.dumps({k: v for k, v in to_json(make_result()).items() if k != "trial_id"}),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_line_in_the_middle_costs_only_itself(tmp_path: Path, broken: str | bytes) -> None:
    write_lines(tmp_path, line_of(launch=1), broken, line_of(launch=2))
    run = load_run(tmp_path)
    assert launches(tmp_path) == [1, 2]
    assert len(run.warnings) == 1
    assert run.warnings[0].startswith(f"{tmp_path / 'trials.jsonl'}:2: left out: ")
    assert "\n" not in run.warnings[0]
    assert len(run.warnings[0]) < 500


@pytest.mark.parametrize("value", ["NaN", "1e999", "-Infinity"])
def test_a_setting_that_is_no_finite_number_is_left_out(tmp_path: Path, value: str) -> None:
    write_lines(tmp_path, line_of(launch=1), line_of(launch=2).replace('"batch_size": 4', f'"lr": {value}'))
    assert launches(tmp_path) == [1]
    assert len(load_run(tmp_path).warnings) == 1


@pytest.mark.parametrize("times", [[-0.25, 0.5], [0.0, 0.5], []], ids=["negative", "zero", "none"])
def test_a_good_launch_has_times_above_zero(tmp_path: Path, times: list[float]) -> None:
    write_lines(tmp_path, line_of(launch=1), line_of(launch=2).replace("[0.25, 0.5]", json.dumps(times)))
    assert launches(tmp_path) == [1]
    assert len(load_run(tmp_path).warnings) == 1


def test_the_warning_names_what_is_wrong(tmp_path: Path) -> None:
    write_lines(tmp_path, line_of(status="fine"))
    assert ":1: left out: status: " in load_run(tmp_path).warnings[0]


def test_a_good_launch_has_ranks(tmp_path: Path) -> None:
    write_lines(tmp_path, line_of(launch=1), line_of(launch=2, ranks=[]))
    assert launches(tmp_path) == [1]
    assert len(load_run(tmp_path).warnings) == 1


def test_a_failed_launch_needs_no_samples(tmp_path: Path) -> None:
    write_lines(tmp_path, line_of(launch=1, status="failed", reason="rank 0 left", ranks=[]))
    assert launches(tmp_path) == [1]
    assert load_run(tmp_path).warnings == ()


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    write_lines(tmp_path, line_of(launch=1), line_of(launch=2, schema_version="3.3"), line_of(launch=3))
    run = load_run(tmp_path)
    assert launches(tmp_path) == [1, 3]
    cause = "schema 3.3 is not 2.0; another version of scalescope wrote it"
    assert run.warnings == (f"{tmp_path / 'trials.jsonl'}:2: left out: {cause}",)


def test_a_newer_schema_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    write_lines(tmp_path, json.dumps({"schema_version": "9.0", "everything": "else"}))
    assert "schema 9.0 is not 2.0; another version of scalescope wrote it" in load_run(tmp_path).warnings[0]


def test_a_newer_minor_schema_is_read_and_its_additions_are_ignored(tmp_path: Path) -> None:
    write_lines(tmp_path, line_of(launch=4, schema_version="2.7", invented_later=[1, 2]))
    run = load_run(tmp_path)
    assert launches(tmp_path) == [4]
    assert run.warnings == ()


def test_of_a_repeated_launch_the_newest_record_counts(tmp_path: Path) -> None:
    write_lines(
        tmp_path,
        line_of(launch=0, status="failed", reason="first try", ranks=[]),
        line_of(launch=1),
        line_of(launch=0, trial_id=OTHER.trial_id, settings=dict(OTHER.settings)),
        line_of(launch=0, duration_s=9.0),
    )
    results = load_run(tmp_path).results
    assert [(result.trial_id, result.launch, result.status) for result in results] == [
        (TRIAL.trial_id, 0, "ok"),
        (TRIAL.trial_id, 1, "ok"),
        (OTHER.trial_id, 0, "ok"),
    ]
    assert results[0].duration_s == 9.0
    assert load_run(tmp_path).of_status("failed") == ()


def test_results_are_separated_by_status(tmp_path: Path) -> None:
    write_lines(
        tmp_path, line_of(launch=0), line_of(launch=1, status="oom"), line_of(launch=2, status="hang")
    )
    run = load_run(tmp_path)
    assert [result.launch for result in run.of_status("oom", "hang")] == [1, 2]


@pytest.mark.parametrize("raw", ["[]", "{", "[" * 100_000, '"text"'], ids=["list", "cut", "deep", "text"])
def test_a_broken_environment_does_not_cost_the_results(tmp_path: Path, raw: str) -> None:
    write_lines(tmp_path, line_of())
    (tmp_path / "environment.json").write_text(raw)
    run = load_run(tmp_path)
    assert run.environment == {}
    assert len(run.results) == 1


def test_the_environment_comes_with_the_run(tmp_path: Path) -> None:
    write_lines(tmp_path, line_of())
    (tmp_path / "environment.json").write_text('{"variables": {"NCCL_ALGO": "Ring"}}')
    assert load_run(tmp_path).environment == {"variables": {"NCCL_ALGO": "Ring"}}


_TOPOLOGY = {"gpus": [{"index": 0}], "numa_cores": {"0": [0, 1]}, "numa_distances": [[10]]}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gpus": [{"index": 0}, {"name": "H100"}]}, "gpus.1.index: Field required"),
        ({"numa_cores": {"node": [0, 1]}}, "numa_cores.node.[key]: Input should be a valid integer"),
        ({"numa_distances": [[10], "20"]}, "numa_distances.1: Input should be a valid array"),
    ],
)
def test_a_damaged_part_of_a_topology_is_named_and_the_rest_is_read(
    tmp_path: Path, change: dict[str, object], named: str
) -> None:
    write_lines(tmp_path, line_of())
    stored = {"machine": None, "system": {"topology": {**_TOPOLOGY, **change}}}
    (tmp_path / "environment.json").write_text(json.dumps(stored))
    run = load_run(tmp_path)
    (warning,) = run.warnings
    assert warning.startswith(f"{tmp_path / 'environment.json'}: left out: system.topology.{named}")
    topology = topologies_of(run.environment)["unknown"]
    assert [gpu.index for gpu in topology.gpus] == [0]
    topology.numa_nodes_of([0])
    assert "machine" not in run.environment
