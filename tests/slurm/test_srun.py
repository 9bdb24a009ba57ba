"""Verbs as ranks of a job step."""

import json
import re
import sys
from itertools import combinations

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
    assert f"2 ranks on 2 nodes: {', '.join(NODES)}. They meet in torch's store" in finished.stdout
    environment = json.loads((finished.folder / "environment.json").read_text())
    assert list(environment["nodes"]) == list(NODES)
    assert {node["cores"] for node in environment["nodes"].values()} == {
        1
    }  # what SLURM gave, not all there are
    assert environment["node_differences"] == []
    assert run.leftovers(within_s=5.0) == []


def test_pairs_of_ranks_on_two_nodes(start: Start, cluster: dict[str, str]) -> None:
    four = tuple(word.replace("--ntasks=2", "--ntasks=4") for word in _SRUN)
    finished = start("comm", "--device=cpu", "--pairs", "--iters=2", command=four, **cluster).finish()
    assert finished.returncode == 0, finished.stdout + finished.stderr
    pairs = finished.summary["results"]["pairs"]
    assert {tuple(one["ranks"]) for one in pairs} == set(combinations(range(4), 2))
