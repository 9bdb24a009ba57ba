"""Nodes made of what their ranks saw."""

import dataclasses
from typing import Any

import pytest

from scalescope.errors import CannotRun
from scalescope.launch.fake import TWO_CORES
from scalescope.launch.probing import nodes_from_probes


def _probe(host: str, node: str, **changes: Any) -> dict[str, Any]:
    raw = dataclasses.asdict(TWO_CORES)
    return {
        "host": host,
        "node": node,
        "cores": [0, 1],
        "cpus_per_task": 0,
        "gpu": None,
        "machine": raw,
        "system": {},
    } | changes


def _gpu(uuid: str) -> dict[str, Any]:
    return {"index": 0, "name": "H200", "memory_bytes": 1, "uuid": uuid}


def test_one_machine_for_each_node_in_the_order_of_ranks() -> None:
    nodes = nodes_from_probes([_probe("b", "0"), _probe("b", "0", machine=None), _probe("a", "1")])
    assert list(nodes) == ["b", "a"]
    assert nodes["b"].machine.cores == 2
    assert [node.ranks for node in nodes.values()] == [(0, 1), (2,)]


def test_cores_dealt_out_to_tasks_are_added() -> None:
    bound = [_probe("a", "0", cores=[0, 1]), _probe("a", "0", cores=[2, 3], machine=None)]
    assert nodes_from_probes(bound)["a"].machine.cores == 4


def test_no_more_cores_than_slurm_gave() -> None:
    free = [_probe("a", "0", cores=list(range(64)), cpus_per_task=4) for _ in range(2)]
    assert nodes_from_probes(free)["a"].machine.cores == 8


def test_gpus_that_only_their_rank_sees_are_added() -> None:
    first = _probe("a", "0")
    first["machine"]["gpus"] = [_gpu("x")]
    nodes = nodes_from_probes([first, _probe("a", "0", machine=None, gpu=_gpu("y"))])
    assert [gpu.uuid for gpu in nodes["a"].machine.gpus] == ["x", "y"]


def test_nodes_with_the_same_name_are_distinguished() -> None:
    assert list(nodes_from_probes([_probe("a", "0"), _probe("a", "1")])) == ["a", "a (node 1)"]


def test_a_node_without_a_probe_is_refused() -> None:
    with pytest.raises(CannotRun, match="that node was not probed"):
        nodes_from_probes([_probe("a", "0", machine=None)])
