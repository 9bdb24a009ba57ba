"""The nodes of a run as a table, and where every rank ran."""

from scalescope.report.checks import node_sections
from scalescope.report.performance import performance_text
from tests.unit.analysis.checks.test_node_facts import TELEMETRY, environment, launched, rank, run_of

RANKS = rank(0, "n1", "0-1", "a"), rank(1, "n2", "0-1", "b")


def test_every_node_has_a_row_with_numa_network_and_telemetry() -> None:
    run = run_of(environment("n1", "n2"), launched(*RANKS, telemetry=TELEMETRY))
    (section,) = node_sections(run)
    assert section.table is not None
    first, second = (dict(zip(section.table.columns, row, strict=True)) for row in section.table.rows)
    assert (first["node"], second["node"]) == ("n1", "n2")
    assert first["NUMA nodes"] == "2 (cores 0-1; 2-3), distance up to 21"
    assert first["network"] == "2 × infiniband 400 Gbit/s (mlx5_0, mlx5_1)"
    assert (first["CPU busy"], second["CPU busy"]) == ("20 %", "60 %")
    assert (first["network errors"], second["network errors"]) == ("none", "mlx5_0/1: 12")
    assert "Rank 1 on n2: cores 0-1 on NUMA node 0, GPU 1 on NUMA node 1 (distance 21)" in section.details[1]
    assert "mlx5_1 over PXB" in section.details[1]


def test_a_single_node_is_shown_on_request() -> None:
    (section,) = node_sections(run_of(environment("n1"), launched(RANKS[0])))
    assert section.table is None and section.lines == ()
    assert "NUMA nodes: 2 (cores 0-1; 2-3), distance up to 21" in section.details


def test_runs_that_recorded_no_topology_have_no_such_section() -> None:
    assert node_sections(run_of({}, launched(RANKS[0]))) == ()


def test_explain_has_the_nodes() -> None:
    text = performance_text(run_of(environment("n1", "n2"), launched(*RANKS, telemetry=TELEMETRY)))
    assert "distance up to 21" in text and "mlx5_0/1: 12" in text
