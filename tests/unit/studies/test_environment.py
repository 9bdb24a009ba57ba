"""When two runs measured the same: machines of one kind and the same code, or named differences."""

import dataclasses
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from scalescope.experiment.machine import Gpu, PrecisionSupport
from scalescope.results.run import Run
from scalescope.studies.comparison.workload_files import file_differences
from scalescope.studies.environment import environment_record, unlike_fields
from tests.builders.results import make_result, make_trial
from tests.simulated.launcher import TWO_CORES

_GPU = Gpu(index=0, name="H100", memory_bytes=80_000_000_000, uuid="a")
_NODE = dataclasses.replace(TWO_CORES, gpus=(_GPU,), memory_bytes=1_000_000)


def _gpus(**change: Any) -> dict[str, Any]:
    return {"gpus": (dataclasses.replace(_GPU, **change),)}


@pytest.mark.parametrize(
    "change",
    [
        {"host": "other"},
        {"memory_bytes": 1_000_000 + 4096},
        {"memory_bytes": 960_000},
        _gpus(uuid="b"),
        _gpus(compute_capability=(9, 0)),
        {"precisions": (PrecisionSupport(name="bf16", native=True, slowdown=0.4),)},
        _gpus(memory_bytes=79_000_000_000),
    ],
)
def test_nodes_of_one_type_are_the_same(change: dict[str, Any]) -> None:
    assert unlike_fields(_NODE, dataclasses.replace(_NODE, **change)) == []


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"cores": 64}, "cores (2, now 64)"),
        ({"torch_version": "2.14.0"}, "torch_version (2.13.0, now 2.14.0)"),
        ({"memory_bytes": 900_000}, "memory_bytes (1000000, now 900000)"),
        ({"memory_bytes": None}, "memory_bytes (1000000, now None)"),
        ({"gpus": ()}, "gpus (1 x H100 of 80000000000 bytes, now none)"),
        (_gpus(name="A100"), "gpus (1 x H100 of 80000000000 bytes, now 1 x A100 of 80000000000 bytes)"),
        (
            _gpus(memory_bytes=40_000_000_000),
            "gpus (1 x H100 of 80000000000 bytes, now 1 x H100 of 40000000000 bytes)",
        ),
        ({"ranks_per_node": 4}, "ranks_per_node (None, now 4)"),
    ],
)
def test_what_differs_is_named(change: dict[str, Any], difference: str) -> None:
    assert unlike_fields(_NODE, dataclasses.replace(_NODE, **change)) == [difference]


@pytest.mark.parametrize("nodes", [{}, [], None, {"a": {}}])
def test_a_stored_record_without_usable_hosts_stays_as_it_is(nodes: Any, tmp_path: Path) -> None:
    launcher = mock.Mock(nodes=lambda: {"another": TWO_CORES})
    plan = mock.Mock(machine=TWO_CORES, environment=None, only=())
    (tmp_path / "environment.json").write_text(json.dumps({"environment_id": "x", "nodes": nodes}))
    assert environment_record(tmp_path, plan, launcher, resume=True) is None


def run_of_command(**digests: str) -> Run:
    result = make_result(make_trial().replace(workload="command"), [[0.1]])
    rows = [{"path": f"/x/{name}.py", "sha256": digest} for name, digest in digests.items()]
    result.ranks[0].tables["script_files"] = rows
    return Run(path=Path("run"), environment={}, results=(result,), warnings=())


def test_the_files_of_a_script_are_compared_one_by_one() -> None:
    before, after = run_of_command(train="aa", model="bb", old="cc"), run_of_command(train="aa", model="dd")
    (difference,) = file_differences(before, after)
    assert (difference.kind, difference.name) == ("code", "model.py")
    assert (difference.before, difference.after) == ("SHA-256 bb", "SHA-256 dd")
