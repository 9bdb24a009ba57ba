"""Verbs as ranks of a job step."""

import json
import re
import sys
from typing import Any

import pytest

from tests.conftest import TINY
from tests.gloo.real_runs import FinishedRun
from tests.slurm.cluster import NODES
from tests.slurm.conftest import Commands, driven_by
from tests.speed import patience

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(patience(300))]

_SRUN = ("srun", "--nodes=2", "--ntasks=2", "--cpus-per-task=1", sys.executable, "-m", "scalescope")
_FOUR = tuple(word.replace("--ntasks=2", "--ntasks-per-node=2") for word in _SRUN)


def _train(commands: Commands) -> FinishedRun:
    run = commands.start("train", *TINY, command=_SRUN)
    finished = run.finish(300)
    assert run.leftovers() == []
    return finished


@driven_by(_train)
def test_train_as_ranks_of_srun_on_two_nodes(outcome: Any) -> None:
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    (result,) = outcome.results
    assert [rank["host"] for rank in result["ranks"]] == list(NODES)
    met = re.search(rf"^Rendezvous of the ranks: {NODES[0]}:(\d+)\.$", outcome.stdout, re.MULTILINE)
    assert met is not None and 20_000 <= int(met[1]) < 32_000  # which one depends on the number of the job
    assert f"2 ranks on 2 nodes: {', '.join(NODES)}." in outcome.stdout
    assert "torch's store has no authentication" in outcome.stdout
    environment = json.loads((outcome.folder / "environment.json").read_text())
    assert list(environment["nodes"]) == list(NODES)
    # What SLURM gave, not all there are.
    assert {node["cores"] for node in environment["nodes"].values()} == {1}


def _curves(commands: Commands) -> FinishedRun:
    asked = ("--device=cpu", "--collective=all_reduce", "-b", "1K", "-e", "1K", "--iters=2")
    return commands.start("comm", *asked, command=_FOUR).finish(300)


@driven_by(_curves)
def test_curves_inside_a_node_and_between_nodes(outcome: Any) -> None:
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    hosts = {
        (result["settings"]["world_size"], tuple(rank["host"] for rank in result["ranks"]))
        for result in outcome.results
    }
    first, second = NODES
    assert hosts == {(4, (first, first, second, second)), (2, (first, first)), (2, NODES)}
    rows = outcome.summary["results"]["communication"]["all_reduce"]
    assert {row["reach"] for row in rows} == {"several nodes", "inside a node", "between nodes"}


def _check(commands: Commands) -> str:
    return commands.ask(*_SRUN, "check")


@driven_by(_check)
def test_check_has_a_row_for_every_node(outcome: Any) -> None:
    rows = [line.split() for line in outcome.splitlines() if line.startswith("scalenode")]
    assert [row[:2] for row in rows] == [[NODES[0], "0"], [NODES[1], "1"]], outcome
