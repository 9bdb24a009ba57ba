"""`comm` from request to report, on ranks whose times are made up."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import BadInput
from scalescope.experiment.given import Given
from scalescope.experiment.machine import Machine, combined_machine
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.launch.validity import judge
from scalescope.report.comm.nccl_tests import parse
from scalescope.results.result import RankRecord
from scalescope.studies.request import Request
from tests.builders.studies import comm
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

from .recording import RecordingWatcher, summary_of

SIZES = [1 << power for power in range(10, 25, 2)]


def ask(**asked: Any) -> Request:
    """Two ranks, one collective, eight sizes; lists are sweeps."""
    switches = {name: asked.pop(name) for name in ("dry_run", "resume") if name in asked}
    settings = {
        "collective": "all_reduce",
        "min_bytes": "1K",
        "max_bytes": "16M",
        "step_factor": 4,
        "output_dir": "run",
        **asked,
    }
    values = {name: setting if isinstance(setting, list) else [setting] for name, setting in settings.items()}
    flags = {name: tuple(Given(str(value), f"--{name}") for value in given) for name, given in values.items()}
    return Request(verb="comm", benchmark="comm", flags=flags, **switches)


def time_s(size: int) -> float:
    return 20e-6 + size / 1e9


def measured(wrong: int = 0) -> Callable[[Trial, int], Outcome]:
    """Every rank takes the same known time at each size."""

    def outcome(trial: Trial, launch: int) -> Outcome:
        keys = {f"all_reduce/in/{size}": [time_s(size)] * 5 for size in SIZES}
        counters = {f"{key}/wrong": wrong for key in keys}
        records = [
            RankRecord(
                rank=rank, host="fake", device="cpu", placement="", samples=keys, counters={**counters}
            )
            for rank in range(trial.world_size)
        ]
        return judge(trial, records)

    return outcome


def launcher(wrong: int = 0) -> FakeLauncher:
    return FakeLauncher(CostModel(), outcomes=measured(wrong))


def test_a_run_leaves_table_summary_curve_and_nccl_tests_json() -> None:
    report = comm(ask(), launcher(), RecordingWatcher(), nccl_json=Path("theirs.json"))
    assert report.exit_code == 0
    assert report.run is not None
    rows = summary_of(report.path)["results"]["communication"]["all_reduce"]
    assert [row["size_bytes"] for row in rows] == SIZES
    assert [row["busbw_bytes_per_s"] for row in rows] == pytest.approx([s / time_s(s) for s in SIZES])
    (curve,) = json.loads(Path("run/curve.json").read_text())["curves"]
    assert curve["fits"]["a+bS"]["coefficients"] == pytest.approx([20e-6, 1e-9])
    table = "\n".join(line for section in report.sections for line in section.lines)
    printed, written = parse(table, "table"), parse(Path("theirs.json").read_text(), "theirs.json")
    assert [row.time_s for row in written] == pytest.approx([time_s(size) for size in SIZES])
    assert [row.time_s for row in printed] == pytest.approx([row.time_s for row in written], rel=1e-3)
    assert {(row.ranks, row.collective) for row in (*printed, *written)} == {(2, "all_reduce")}


def test_a_wrong_element_fails_the_trial() -> None:
    report = comm(ask(), launcher(wrong=3), RecordingWatcher(), least_busbw=1.1e9)
    assert report.exit_code == 6  # which comes before the gate
    assert report.run is not None
    (result,) = report.run.results
    assert (result.status, result.reason) == ("invalid", "3 wrong elements in all_reduce/in/1024 on rank 0")


@pytest.mark.parametrize(("least", "code"), [(0.9e9, 0), (1.1e9, 8)])
def test_the_gate_decides_the_exit_code(least: float, code: int) -> None:
    report = comm(ask(), launcher(), RecordingWatcher(), least_busbw=least)
    assert report.exit_code == code
    assert report.sections[-1].lines[0].startswith("Gate failed" if code else "Gate passed")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"min_bytes": "0"}, "--min_bytes: must be at least 1, got 0"),
        ({"min_bytes": "1X"}, "--min_bytes: expected a size"),
        ({"min_bytes": "32M"}, "max_bytes 16777216 is below min_bytes 33554432"),
        ({"collective": "allreduce"}, "--collective: unknown collective 'allreduce'"),
        ({"dtype": "float8"}, "--dtype: must be one of"),
        ({"world_size": 1}, "collectives require at least 2 ranks"),
        ({"link": "fast"}, "--link: expected a rate"),
        ({"link": "0:1gbit"}, "--link 0:1gbit: has no rate for rank 1"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(asked: dict[str, str], message: str) -> None:
    fake = launcher()
    with pytest.raises(BadInput) as caught:
        comm(ask(**asked), fake, RecordingWatcher())
    assert str(caught.value).startswith(message)
    assert fake.launched == []
    assert list(Path().iterdir()) == []


def test_a_sweep_of_data_types_makes_one_trial_per_type() -> None:
    watcher = RecordingWatcher()
    report = comm(ask(dtype=["float32", "int8"]), launcher(), watcher)
    assert {trial.settings["dtype"] for trial, _ in watcher.launched} == {"float32", "int8"}
    rows = summary_of(report.path)["results"]["communication"]["all_reduce"]
    assert {row["dtype"] for row in rows} == {"float32", "int8"}


class TwoNodes(FakeLauncher):
    """Two nodes of four ranks each, as an attached launcher would find them."""

    repeatable = False

    def machine(self) -> Machine:
        return combined_machine(self.nodes(), dict.fromkeys(self.nodes(), 4))

    def nodes(self) -> dict[str, Machine]:
        return {"n1": TWO_CORES, "n2": TWO_CORES}


def placed(trial: Trial, launch: int) -> Outcome:
    """Ranks on the nodes that the trial asks for; between nodes everything takes ten times as long."""
    hosts = {"one_node": ["n1"] * 4, "one_per_node": ["n1", "n2"]}.get(
        str(trial.settings["among"]), ["n1"] * 4 + ["n2"] * 4
    )
    slower = 10.0 if len(set(hosts)) > 1 else 1.0
    samples = {f"all_reduce/in/{size}": [slower * time_s(size)] * 5 for size in SIZES}
    records = [
        RankRecord(rank=rank, host=host, device="cpu", placement="", samples=samples)
        for rank, host in enumerate(hosts)
    ]
    return judge(trial, records)


def test_on_several_nodes_each_placement_has_its_own_curve() -> None:
    least = 0.9 * SIZES[-1] / (10.0 * time_s(SIZES[-1])) * 2 * 7 / 8  # the gate is for all ranks
    options = {"most_ranks": 8, "least_busbw": least, "nccl_json": Path("nccl.json")}
    report = comm(ask(), TwoNodes(CostModel(), outcomes=placed), RecordingWatcher(), **options)
    assert report.exit_code == 0
    assert {row["ranks"] for row in json.loads(Path("nccl.json").read_text())["results"]} == {8}
    rows = summary_of(report.path)["results"]["communication"]["all_reduce"]
    assert {(row["world_size"], row["reach"]) for row in rows} == {
        (8, "several nodes"),
        (4, "inside a node"),
        (2, "between nodes"),
    }
    curves = json.loads((Path("run") / "curve.json").read_text())["curves"]
    latencies = {curve["reach"]: curve["points"][0][1] for curve in curves}
    assert latencies["between nodes"] == pytest.approx(10 * latencies["inside a node"])
    lines = report.sections[0].lines
    assert [line.partition(" takes")[0] for line in lines] == [
        "all_reduce over 8 ranks on 2 nodes",
        "all_reduce over 4 ranks of one node (n1)",
        "all_reduce over 2 ranks on 2 nodes, one each,",
    ]
    assert report.headline == lines[0]


@pytest.mark.parametrize("asked", [{"pairs": "true"}, {"world_size": 2}, {"world_size": 4}])
def test_a_plan_within_one_placement_has_a_single_trial(asked: dict[str, Any]) -> None:
    report = comm(ask(dry_run=True, **asked), TwoNodes(CostModel()), RecordingWatcher(), most_ranks=8)
    (plan,) = report.sections
    assert plan.table is not None
    assert len(plan.table.rows) == 1
