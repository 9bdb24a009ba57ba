"""Evidence from both nodes of a job step: topology, telemetry and network, stored and explained."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import TINY, clean_environment
from tests.gloo.real_runs import SCALESCOPE, FinishedRun
from tests.slurm.cluster import NODES
from tests.slurm.conftest import Commands, driven_by
from tests.speed import patience

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(patience(300))]

_SRUN = ("srun", "--nodes=2", "--ntasks=2", "--cpus-per-task=1", sys.executable, "-m", "scalescope")
_LONG_ENOUGH = (*(flag for flag in TINY if "steps" not in flag), "--window=2")  # for several samples


def _measured_and_explained(commands: Commands) -> tuple[FinishedRun, str]:
    """A run on both nodes, and what `explain` says of it."""
    finished = commands.start("train", *_LONG_ENOUGH, command=_SRUN).finish(300)
    explained = subprocess.run(
        (*SCALESCOPE, "explain", str(finished.folder), "-v"),
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=patience(),
    )
    return finished, explained.stdout


@driven_by(_measured_and_explained)
def test_the_environment_has_numa_and_network_facts_of_both_nodes(outcome: Any) -> None:
    finished, _ = outcome
    assert finished.returncode == 0, finished.stdout + finished.stderr
    systems = json.loads((finished.folder / "environment.json").read_text())["systems"]
    assert list(systems) == list(NODES)
    for system in systems.values():
        topology = system["topology"]
        assert topology["numa_cores"] and all(
            isinstance(cores, list) for cores in topology["numa_cores"].values()
        )
        assert len(topology["numa_distances"]) == len(topology["numa_cores"])
        assert {nic["name"] for nic in topology["nics"]} <= {card["name"] for card in system["interfaces"]}
        assert system["interfaces"]
        assert not {"NCCL_DEBUG", "NCCL_DEBUG_FILE"} & set(system["variables"])  # ours, not the user's


@driven_by(_measured_and_explained)
def test_a_launch_has_the_telemetry_of_both_nodes(outcome: Any) -> None:
    finished, _ = outcome
    (result,) = finished.results
    hosts = result["telemetry"]["hosts"]
    assert list(hosts) == list(NODES)
    for sampled in hosts.values():
        assert sampled["samples"] >= 2
        assert 0.0 < sampled["cpu"]["host_utilization"] <= 1.0
        assert len(sampled["cpu"]["rank_busy_cores"]) == 1
        assert sampled["load"]["cores"] >= 1
    assert result["telemetry"]["cpu"] == hosts[NODES[0]]["cpu"]  # as it is for ranks of one host
    assert all(rank["counters"]["affinity"] for rank in result["ranks"])


@driven_by(_measured_and_explained)
def test_explain_reads_the_facts_of_both_nodes(outcome: Any) -> None:
    _, explained = outcome
    heading = next(line for line in explained.splitlines() if line.startswith("node "))
    assert "NUMA nodes" in heading and "network" in heading and "CPU busy" in heading
    rows = [line for line in explained.splitlines() if line.startswith(NODES)]
    assert [row.split()[0] for row in rows] == list(NODES)
    assert all("cores 0" in row and "%" in row for row in rows)
    for number, node in enumerate(NODES):
        assert f"Rank {number} on {node}: cores " in explained
