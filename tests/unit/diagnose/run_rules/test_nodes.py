"""Rules about nodes: far cores, network errors, no GPUDirect, unused cards, and nodes that differ."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.comm.nccl_log import NcclChoices
from scalescope.analysis.culprit import Straggler
from scalescope.analysis.scaling.waterfall import STRAGGLERS
from scalescope.analysis.statistics import Estimate
from scalescope.diagnose.diagnosis import diagnose
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.run_rules.nodes import (
    far_cores_rule,
    network_errors_rule,
    no_gpudirect_rule,
    unequal_nodes_rule,
    unused_nics_rule,
)
from scalescope.results.run import Run
from tests.builders.facts import ON_GPUS, abstention, evidence_of, finding, make_facts
from tests.simulated.launcher import TWO_CORES
from tests.unit.analysis.checks.test_node_facts import (
    TELEMETRY,
    TOPOLOGY,
    environment,
    launched,
    rank,
    run_of,
)

NODES = environment("n1", "n2")


def far(affinity: str | None = "0-1") -> Run:
    return run_of(NODES, launched(rank(0, "n1", affinity, "a"), rank(1, "n2", affinity, "b")))


def test_a_rank_on_the_other_socket_is_named_with_the_distance() -> None:
    cause = finding(far_cores_rule(far(), ()))
    assert "Rank 1's cores on n2 are on NUMA node 0, its GPU is on node 1 (distance 21)" in cause.claim
    assert "the card mlx5_1 is on node 1 (distance 21)" in cause.claim
    assert evidence_of(cause) == {"rank 1 on n2": "cores 0-1"}
    assert "may" in cause.claim and cause.lost == 0.0
    assert far_cores_rule(far("0-3"), ()) is None


def test_unknown_cores_are_not_judged() -> None:
    assert "cores of every rank" in abstention(far_cores_rule(far(None), ())).missing
    one_node = dataclasses.replace(TOPOLOGY, numa_cores={0: (0, 1, 2, 3)}, numa_distances=((10,),))
    assert far_cores_rule(run_of(environment("n1", topology=one_node)), ()) is None
    assert far_cores_rule(run_of({}), ()) is None


def test_error_counters_that_grew_are_a_finding() -> None:
    ranks = rank(0, "n1", "0", "a"), rank(1, "n2", "2", "b")
    run = run_of(NODES, launched(*ranks, telemetry=TELEMETRY))
    cause = finding(network_errors_rule(run, ()))
    assert evidence_of(cause) == {"mlx5_0/1 of n2": "symbol_error +12"}
    assert network_errors_rule(run_of(NODES, launched(*ranks)), ()) is None
    assert cause in diagnose(run).findings


def choices(**nics: tuple[str, ...]) -> NcclChoices:
    """Connections of each host over these cards, with GPUDirect."""
    return NcclChoices(
        transports=("NET/IB/GDRDMA",),
        network="IB",
        channels=16,
        algorithms=(),
        nvls=None,
        connections={host: {"NET/IB/GDRDMA": 2} for host in nics},
        used_nics=nics,
    )


def through_host_memory(logged: NcclChoices) -> NcclChoices:
    return dataclasses.replace(
        logged, transports=("NET/IB",), connections={host: {"NET/IB": 2} for host in logged.connections}
    )


def connected(logged: NcclChoices | None, ranks: int = 4) -> Facts:
    hosts = ("n1",) * (ranks // 2) + ("n2",) * (ranks // 2)
    return make_facts(ranks=ranks, changes=ON_GPUS, nccl=logged, hosts=hosts)


ALL = choices(n1=("mlx5_0", "mlx5_1"), n2=("mlx5_0", "mlx5_1"))


def test_cards_that_do_not_read_gpu_memory_next_to_them_may_cost_bandwidth() -> None:
    facts = connected(through_host_memory(ALL))
    cause = finding(no_gpudirect_rule(run_of(NODES), (facts,)))
    assert evidence_of(cause)["transport"] == "NET/IB"
    assert "may" in cause.claim and "PIX, PXB" in cause.claim
    assert no_gpudirect_rule(run_of(NODES), (connected(ALL),)) is None
    assert no_gpudirect_rule(run_of(NODES), (connected(None),)) is None


@pytest.mark.parametrize(("paths", "abstains"), [({}, True), ({"0-mlx5_0": "SYS"}, False)])
def test_gpudirect_is_not_missed_where_cards_are_far_or_unknown(
    paths: dict[str, str], abstains: bool
) -> None:
    nodes = environment("n1", "n2", topology=dataclasses.replace(TOPOLOGY, nic_paths=paths))
    outcome: Any = no_gpudirect_rule(run_of(nodes), (connected(through_host_memory(ALL)),))
    assert (outcome is not None) is abstains
    if abstains:
        assert "paths between GPUs and network cards" in abstention(outcome).missing


def test_fewer_cards_than_the_node_has_may_cost_bandwidth() -> None:
    facts = connected(choices(n1=("mlx5_0",), n2=("mlx5_0", "mlx5_1")))
    cause = finding(unused_nics_rule(run_of(NODES), (facts,)))
    assert evidence_of(cause) == {"cards of n1": "mlx5_0 of mlx5_0, mlx5_1", "channels": 16}
    assert "1 of 2 on n1" in cause.claim
    assert unused_nics_rule(run_of(NODES), (connected(ALL),)) is None


def test_a_few_gpus_do_not_need_all_cards_and_slower_ones_are_for_something_else() -> None:
    few = connected(choices(n1=("mlx5_0",), n2=("mlx5_0",)), ranks=2)
    assert unused_nics_rule(run_of(NODES), (few,)) is None
    slow = dataclasses.replace(TOPOLOGY.nics[1], rate_bytes_per_s=3e9)
    nodes = environment("n1", "n2", topology=dataclasses.replace(TOPOLOGY, nics=(TOPOLOGY.nics[0], slow)))
    assert unused_nics_rule(run_of(nodes), (connected(choices(n1=("mlx5_0",), n2=("mlx5_0",))),)) is None


# nodes that should be alike


def run_on(**cores: int) -> Run:
    """A run on nodes with so many cores each."""
    nodes = {
        host: dataclasses.asdict(dataclasses.replace(TWO_CORES, cores=count)) for host, count in cores.items()
    }
    return Run(path=Path("run"), environment={"nodes": nodes}, results=(), warnings=())


def behind(rank: int, *, persistent: bool = True) -> Straggler:
    return Straggler(rank=rank, time_s=0.02, persistent=persistent)


def test_equal_nodes_give_no_finding() -> None:
    assert unequal_nodes_rule(run_on(n1=64, n2=64), ()) is None
    unknown = Run(path=Path("run"), environment={}, results=(), warnings=())
    assert unequal_nodes_rule(unknown, ()) is None


def test_a_run_without_scaling_has_the_finding_too() -> None:
    (found,) = diagnose(run_on(n1=64, n2=32)).findings
    assert found.rule == "nodes differ"
    assert found.claim.startswith("cores: 64 on n1; 32 on n2. ")
    assert found.share == 0.0
    assert {evidence.name: evidence.value for evidence in found.evidence} == {"cores": "64 on n1; 32 on n2"}


def test_where_one_rank_is_late_its_node_is_named_with_what_it_costs() -> None:
    late = make_facts({STRAGGLERS: 0.02}, ranks=4, straggler=behind(2), hosts=("n1", "n1", "n2", "n2"))
    found = unequal_nodes_rule(run_on(n1=64, n2=32), (late,))
    assert found is not None
    assert "rank 2 on n2" in found.claim.lower()
    assert found.share == pytest.approx(0.2)
    assert found.lost == pytest.approx(0.8)
    assert found.certain


def test_a_late_rank_like_most_or_uncertain_is_not_for_the_difference() -> None:
    late = make_facts({STRAGGLERS: 0.02}, ranks=3, straggler=behind(1), hosts=("n1", "n2", "n3"))
    found = unequal_nodes_rule(run_on(n1=64, n2=32, n3=32), (late,))
    assert found is not None and found.share == 0.0
    doubtful = Estimate(0.02, -0.01, 0.05)
    late = make_facts({STRAGGLERS: doubtful}, straggler=behind(1), hosts=("n1", "n2"))
    found = unequal_nodes_rule(run_on(n1=64, n2=32), (late,))
    assert found is not None and found.share > 0.0 and not found.certain


@pytest.mark.parametrize("hosts", [(), ("n1", "n2")])
def test_no_node_is_named_if_the_host_of_the_late_rank_is_unknown(hosts: tuple[str, ...]) -> None:
    changing = make_facts({STRAGGLERS: 0.02}, straggler=behind(1, persistent=not hosts), hosts=hosts)
    found = unequal_nodes_rule(run_on(n1=64, n2=32), (changing,))
    assert found is not None and found.share == 0.0
