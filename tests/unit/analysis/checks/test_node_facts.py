"""Nodes of a run: telemetry and errors of each, and where every rank ran on it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalescope.analysis.checks.nodes import RankSite, node_facts, ports_with_errors, rank_sites
from scalescope.results.result import RankRecord, Result
from scalescope.results.run import Run
from scalescope.results.topology import GpuSite, NicSite, Topology
from tests.builders.results import make_result, make_trial

# Two sockets with a GPU and a card each.
TOPOLOGY = Topology(
    gpus=(GpuSite(index=0, uuid="a", numa_node=0), GpuSite(index=1, uuid="b", numa_node=1)),
    nics=(
        NicSite(name="mlx5_0", kind="infiniband", rate_bytes_per_s=50e9, numa_node=0),
        NicSite(name="mlx5_1", kind="infiniband", rate_bytes_per_s=50e9, numa_node=1),
    ),
    gpu_paths={"0-1": "SYS"},
    nic_paths={"0-mlx5_0": "PIX", "0-mlx5_1": "SYS", "1-mlx5_0": "SYS", "1-mlx5_1": "PXB"},
    numa_cores={0: (0, 1), 1: (2, 3)},
    numa_distances=((10, 21), (21, 10)),
)


def environment(*hosts: str, topology: Topology = TOPOLOGY) -> dict[str, Any]:
    systems = {host: {"topology": topology.to_json(), "interfaces": []} for host in hosts}
    first = {"machine": {"host": hosts[0]}, "system": systems[hosts[0]]}
    return {**first, "systems": systems} if len(hosts) > 1 else first


def rank(number: int, host: str, affinity: str | None, gpu: str | None) -> RankRecord:
    counters: dict[str, float | int | str | None] = {"affinity": affinity, "gpu_uuid": gpu}
    return RankRecord(rank=number, host=host, device="cuda:0", placement="", counters=counters)


def launched(*ranks: RankRecord, telemetry: Mapping[str, Any] | None = None) -> Result:
    trial = make_trial(strategy="ddp", world_size=len(ranks)) if len(ranks) > 1 else make_trial()
    made = make_result(trial, [[0.1] * 10] * len(ranks))
    named = [dataclasses.replace(record, samples=made.ranks[0].samples) for record in ranks]
    return dataclasses.replace(made, ranks=named, telemetry=dict(telemetry or {}))


def run_of(environment: dict[str, Any], *results: Result) -> Run:
    return Run(path=Path("/run"), environment=environment, results=results, warnings=())


def sites(*ranks: RankRecord, **changes: Any) -> tuple[RankSite, ...]:
    topology = dataclasses.replace(TOPOLOGY, **changes)
    hosts = dict.fromkeys(record.host for record in ranks)
    return rank_sites(run_of(environment(*hosts, topology=topology), launched(*ranks)))


def test_a_rank_is_near_or_far_from_its_gpu_and_card() -> None:
    near, far = sites(rank(0, "n1", "0-1", "a"), rank(1, "n2", "0-1", "GPU-b"))
    assert (near.numa_nodes, near.gpu_distance, near.nic_distance, near.is_far) == ((0,), 10, 10, False)
    assert near.nic is not None and (near.nic.name, near.nic_path) == ("mlx5_0", "PIX")
    assert (far.numa_nodes, far.gpu_distance, far.nic_distance, far.is_far) == ((0,), 21, 21, True)
    (site,) = sites(rank(0, "n1", "0-3", "b"))
    assert (site.gpu_distance, site.is_far) == (10, False)
    (site,) = sites(rank(0, "n1", "0-1", "b"), nics=TOPOLOGY.nics)
    assert (site.gpu_distance, site.nic_distance) == (21, None)


def test_what_is_not_known_is_no_distance() -> None:
    (site,) = sites(rank(0, "n1", "0-1", "b"), numa_distances=())
    assert (site.gpu_distance, site.is_far) == (None, False)
    (site,) = sites(rank(0, "n1", "0-1", None))
    assert (site.gpu, site.nic, site.is_far) == (None, None, False)
    assert sites(rank(0, "n1", None, "a")) == ()
    assert rank_sites(run_of({}, launched(rank(0, "n1", "0-1", "a")))) == ()


TELEMETRY = {
    "cpu": {"host_utilization": 0.2},
    "hosts": {
        "n1": {"cpu": {"host_utilization": 0.2}, "infiniband": {"mlx5_0/1": {}}},
        "n2": {"cpu": {"host_utilization": 0.6}, "infiniband": {"mlx5_0/1": {"symbol_error": 12}}},
    },
}


def test_every_node_has_its_own_telemetry_and_errors() -> None:
    both = launched(rank(0, "n1", "0", "a"), rank(1, "n2", "0", "a"), telemetry=TELEMETRY)
    alone = launched(rank(0, "n2", "0", "a"), telemetry={"cpu": {"host_utilization": 0.8}})
    first, second = node_facts(run_of(environment("n1", "n2"), both, both, alone))
    assert first.telemetry is not None and second.telemetry is not None
    assert first.telemetry.host_utilization == 0.2
    assert round(second.telemetry.host_utilization or 0.0, 3) == round((0.6 + 0.6 + 0.8) / 3, 3)
    assert (first.errors, second.errors) == ({"mlx5_0/1": {}}, {"mlx5_0/1": {"symbol_error": 24}})
    assert first.topology == TOPOLOGY
    result = launched(rank(0, "n1", "0", "a"), rank(1, "n2", "0", "a"), telemetry=TELEMETRY)
    (port,) = ports_with_errors(run_of(environment("n1", "n2"), result))
    assert port.text == "mlx5_0/1 of n2: symbol_error +12"


def test_a_run_on_one_host_has_one_node_and_an_old_one_none() -> None:
    result = launched(rank(0, "n1", "0", "a"), telemetry={"cpu": {"host_utilization": 0.8}})
    (node,) = node_facts(run_of(environment("n1"), result))
    assert node.telemetry is not None and node.telemetry.host_utilization == 0.8
    assert node.errors is None  # there are no ports
    assert node_facts(run_of({}, result)) == ()
