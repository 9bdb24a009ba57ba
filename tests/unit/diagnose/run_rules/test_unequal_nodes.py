"""Nodes that should be alike and are not: a finding, whatever the run measured."""

import dataclasses
from pathlib import Path

import pytest

from scalescope.analysis.culprit import Straggler
from scalescope.analysis.scaling.waterfall import STRAGGLERS
from scalescope.analysis.statistics import Estimate
from scalescope.diagnose.diagnosis import diagnose
from scalescope.diagnose.run_rules import unequal_nodes
from scalescope.launch.fake import TWO_CORES
from scalescope.results.run import Run
from tests.builders.facts import make_facts

CORES = {"name": "cores", "values": {"64": ["n1"], "32": ["n2"]}}
CORES_AS_SENTENCE = "cores: 64 on n1; 32 on n2"  # as earlier versions stored it


def run_on(*differences: object, **cores: int) -> Run:
    """A run on nodes with so many cores each."""
    nodes = {
        host: dataclasses.asdict(dataclasses.replace(TWO_CORES, cores=count)) for host, count in cores.items()
    }
    environment = {"node_differences": list(differences), "nodes": nodes}
    return Run(path=Path("run"), environment=environment, results=(), warnings=())


def behind(rank: int, *, persistent: bool = True) -> Straggler:
    return Straggler(rank=rank, time_s=0.02, persistent=persistent)


def test_equal_nodes_give_no_finding() -> None:
    assert unequal_nodes.rule(run_on(), ()) is None
    old = Run(path=Path("run"), environment={}, results=(), warnings=())
    assert unequal_nodes.rule(old, ()) is None


@pytest.mark.parametrize("stored", [CORES, CORES_AS_SENTENCE])
def test_a_run_without_scaling_has_the_finding_too(stored: object) -> None:
    (finding,) = diagnose(run_on(stored)).findings
    assert finding.rule == "nodes differ"
    assert finding.claim.startswith("cores: 64 on n1; 32 on n2. ")
    assert finding.share == 0.0
    assert {evidence.name: evidence.value for evidence in finding.evidence} == {"cores": "64 on n1; 32 on n2"}


def test_where_one_rank_is_late_its_node_is_named_with_what_it_costs() -> None:
    late = make_facts({STRAGGLERS: 0.02}, ranks=4, straggler=behind(2), hosts=("n1", "n1", "n2", "n2"))
    finding = unequal_nodes.rule(run_on(CORES, n1=64, n2=32), (late,))
    assert finding is not None
    assert "rank 2 on n2" in finding.claim.lower()
    assert finding.share == pytest.approx(0.2)
    assert finding.lost == pytest.approx(0.8)
    assert finding.certain


def test_a_late_rank_on_a_node_like_most_is_not_for_the_difference() -> None:
    late = make_facts({STRAGGLERS: 0.02}, ranks=3, straggler=behind(1), hosts=("n1", "n2", "n3"))
    finding = unequal_nodes.rule(run_on(CORES, n1=64, n2=32, n3=32), (late,))
    assert finding is not None and finding.share == 0.0


def test_an_uncertain_late_rank_makes_the_finding_uncertain() -> None:
    doubtful = Estimate(0.02, -0.01, 0.05)
    late = make_facts({STRAGGLERS: doubtful}, straggler=behind(1), hosts=("n1", "n2"))
    finding = unequal_nodes.rule(run_on(CORES, n1=64, n2=32), (late,))
    assert finding is not None and finding.share > 0.0 and not finding.certain


@pytest.mark.parametrize("hosts", [(), ("n1", "n2")])
def test_no_node_is_named_if_the_host_of_the_late_rank_is_unknown(hosts: tuple[str, ...]) -> None:
    changing = make_facts({STRAGGLERS: 0.02}, straggler=behind(1, persistent=not hosts), hosts=hosts)
    finding = unequal_nodes.rule(run_on(CORES, n1=64, n2=32), (changing,))
    assert finding is not None and finding.share == 0.0
