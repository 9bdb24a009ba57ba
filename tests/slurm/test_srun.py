"""Verbs as ranks of a job step."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.conftest import TINY
from tests.gloo.conftest import Start
from tests.slurm.cluster import NODES

pytestmark = pytest.mark.slurm

_SRUN = ("srun", "--nodes=2", "--ntasks=2", "--cpus-per-task=1", sys.executable, "-m", "scalescope")


def test_train_as_ranks_of_srun_on_two_nodes(start: Start, cluster: dict[str, str]) -> None:
    run = start("train", *TINY, command=_SRUN, **cluster)
    finished = run.finish()
    assert finished.returncode == 0, finished.stdout + finished.stderr
    (result,) = finished.results
    assert [one["host"] for one in result["ranks"]] == list(NODES)
    met = re.search(rf"^Ranks meet at {NODES[0]}:(\d+)\.$", finished.stdout, re.MULTILINE)
    assert met is not None and 20_000 <= int(met[1]) < 32_000  # which one depends on the number of the job
    assert f"2 ranks on 2 nodes: {', '.join(NODES)}." in finished.stdout
    assert "torch's store asks nobody for a password" in finished.stdout
    environment = json.loads((finished.folder / "environment.json").read_text())
    assert list(environment["nodes"]) == list(NODES)
    assert {node["cores"] for node in environment["nodes"].values()} == {
        1
    }  # what SLURM gave, not all there are
    assert environment["node_differences"] == []
    assert run.leftovers(within_s=5.0) == []


_FOUR = tuple(word.replace("--ntasks=2", "--ntasks-per-node=2") for word in _SRUN)


def test_pairs_on_two_nodes(start: Start, cluster: dict[str, str]) -> None:
    finished = start("comm", "--device=cpu", "--pairs", "--iters=2", command=_FOUR, **cluster).finish()
    assert finished.returncode == 0, finished.stdout + finished.stderr
    pairs = {tuple(one["ranks"]): tuple(one["nodes"]) for one in finished.summary["results"]["pairs"]}
    first, second = NODES
    inside = {(0, 1): (first, first), (2, 3): (second, second)}
    assert pairs == {**inside, (0, 2): NODES, (1, 3): NODES}  # not 0 and 3: node meets node


def test_curves_inside_a_node_and_between_nodes(start: Start, cluster: dict[str, str]) -> None:
    asked = ("--device=cpu", "--collective=all_reduce", "-b", "1K", "-e", "1K", "--iters=2")
    finished = start("comm", *asked, command=_FOUR, **cluster).finish()
    assert finished.returncode == 0, finished.stdout + finished.stderr
    hosts = {
        (one["settings"]["world_size"], tuple(rank["host"] for rank in one["ranks"]))
        for one in finished.results
    }
    first, second = NODES
    assert hosts == {(4, (first, first, second, second)), (2, (first, first)), (2, NODES)}
    rows = finished.summary["results"]["communication"]["all_reduce"]
    assert {row["reach"] for row in rows} == {"several nodes", "inside a node", "between nodes"}


def test_check_has_a_row_for_every_node(cluster: dict[str, str]) -> None:
    command = (*_SRUN, "check")
    finished = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **cluster}
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    rows = [line.split() for line in finished.stdout.splitlines() if line.startswith("scalenode")]
    assert [row[:2] for row in rows] == [[NODES[0], "0"], [NODES[1], "1"]]
