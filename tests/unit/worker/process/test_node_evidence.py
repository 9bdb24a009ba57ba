"""What an attached rank hands over with its record: its node's telemetry and topology, and NCCL's log."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from scalescope.results.result import WINDOW
from scalescope.worker.process.node import NodeEvidence

LOG = """\
n1:41:41 [0] NCCL INFO ENV/Plugin: Could not find: libnccl-env.so
n1:41:77 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>
n1:41:77 [0] NCCL INFO CPU/0-0 (1/1/2)
n1:41:77 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA
n1:41:77 [0] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels
"""


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Answers that the command line will give, in turn."""
    given: list[dict[str, Any]] = []

    class Answers:
        def readline(self) -> str:
            return json.dumps(given.pop(0)) + "\n" if given else ""

    monkeypatch.setattr("sys.stdin", Answers())
    monkeypatch.setenv("SCALESCOPE_NODE_WATCH", "1")
    return given


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "nccl.log"
    monkeypatch.setenv("SCALESCOPE_NCCL_LOG", str(path))
    return path


def asked(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_the_node_is_sampled_while_the_trial_runs(answers: list[dict[str, Any]]) -> None:
    answers += [{}, {"telemetry": {"cpu": {"host_utilization": 0.5}}}]
    stream = io.StringIO()
    evidence = NodeEvidence(4, stream)
    request = {"ranks": [0, 4], "watch": {"4": {"gpus": ["a"], "pids": [7]}}}
    evidence.begin(request)
    window = dict(zip(WINDOW, (1.0, 2.0), strict=True))
    record = evidence.end(request, {"rank": 1, "state": "done", "counters": {**window, "parameters": 9}})
    assert record["telemetry"] == {"cpu": {"host_utilization": 0.5}}
    assert asked(stream) == [{"begin": {"gpus": ["a"], "pids": [7]}}, {"end": window}]


def test_a_rank_that_is_not_asked_for_it_asks_nobody(answers: list[dict[str, Any]]) -> None:
    stream = io.StringIO()
    evidence = NodeEvidence(5, stream)
    request = {"ranks": [4, 5], "watch": {"4": {"gpus": [], "pids": []}}}
    evidence.begin(request)
    assert evidence.end(request, {"state": "done"}) == {"state": "done"}
    assert asked(stream) == []
    unanswered = NodeEvidence(4, io.StringIO())  # costs the evidence alone
    unanswered.begin(request)
    assert unanswered.end(request, {"state": "done"}) == {"state": "done"}


def test_the_topology_joins_what_was_inspected(answers: list[dict[str, Any]]) -> None:
    answers.append({"topology": {"numa_cores": {"0": [0]}}})
    stream = io.StringIO()
    system = NodeEvidence(4, stream).system({"link_matrix": "GPU0", "variables": {"NCCL_DEBUG": "WARN"}})
    assert system["topology"] == {"numa_cores": {"0": [0]}}
    assert asked(stream) == [{"topology": "GPU0"}]
    assert system["variables"] == {"NCCL_DEBUG": "WARN"}  # the user's own


def test_variables_that_we_set_are_not_the_user_s(log: Path) -> None:
    variables = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "x", "NCCL_IB_HCA": "mlx5"}
    system = NodeEvidence(0, io.StringIO()).system({"link_matrix": None, "variables": variables})
    assert system["variables"] == {"NCCL_IB_HCA": "mlx5"}


def test_what_nccl_logged_is_handed_over_once_for_every_group_of_ranks(log: Path) -> None:
    evidence = NodeEvidence(0, io.StringIO())
    two: dict[str, Any] = {"ranks": [0, 1]}
    assert evidence.end(two, {"state": "done"}) == {"state": "done"}  # NCCL was not used
    log.write_text(LOG)
    text = evidence.end(two, {"state": "done"})["nccl_log"]
    assert "via NET/IB/0/GDRDMA" in text and "16 coll channels" in text and "Using [0]mlx5_0" in text
    assert "CPU/0-0" not in text  # the search for graphs fills thousands of lines
    with log.open("a") as stream:
        stream.write(LOG.replace("IB/0", "IB/1"))
    assert "nccl_log" not in evidence.end(two, {"state": "done"})
    with log.open("a") as stream:
        stream.write(LOG.replace("IB/0", "IB/2"))
    text = evidence.end({"ranks": [0, 1, 2]}, {"state": "done"})["nccl_log"]
    assert "NET/IB/2" in text and "NET/IB/1" not in text


def test_a_failed_trial_does_not_use_up_the_log_of_its_group(log: Path) -> None:
    evidence, two = NodeEvidence(0, io.StringIO()), {"ranks": [0, 1]}
    log.write_text(LOG)
    assert "nccl_log" in evidence.end(two, {"state": "failed"})
    with log.open("a") as stream:
        stream.write(LOG)
    assert "nccl_log" in evidence.end(two, {"state": "done"})
