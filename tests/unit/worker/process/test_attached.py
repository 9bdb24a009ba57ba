"""How rank 0 collects the answers of attached ranks, including those that never come."""

import io
import json
from typing import Any, cast

import pytest

from scalescope.worker.process import attached
from scalescope.worker.process.node import NodeEvidence
from scalescope.worker.process.rendezvous import Rendezvous

Published = dict[str, bytes]


def answered(**answers: dict[str, Any]) -> Published:
    return {f"answer/3/{rank[1:]}": json.dumps(answer).encode() for rank, answer in answers.items()}


def failed(rank: int, message: str) -> dict[str, Any]:
    return {"rank": rank, "state": "failed", "error": {"message": message, "at_wall_s": 9.0}}


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "_LOST_LIMIT_S", 0.05)
    monkeypatch.setattr(attached, "_ANSWER_LIMIT_S", 0.2)


def gather(published: Published, ranks: list[int]) -> list[dict[str, Any]]:
    return attached._gather({"ranks": ranks, "group_timeout_s": 0.0}, cast(Rendezvous, published), 3)


def test_answers_come_in_the_order_of_the_trial_s_ranks() -> None:
    published = answered(r0={"state": "done", "rank": 1}, r4={"state": "done", "rank": 0})
    assert [answer["rank"] for answer in gather(published, [4, 0])] == [0, 1]


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("message", ["RuntimeError: Connection reset by peer", "ValueError: my own mistake"])
def test_a_rank_that_never_answers_is_lost(message: str) -> None:
    failed_rank, lost = gather(answered(r0=failed(0, message)), [0, 1])
    assert failed_rank["error"]["message"] == message
    assert lost["rank"] == 1 and lost["error"]["lost"]


def test_ranks_that_wait_for_a_failed_one_have_until_the_group_s_limit() -> None:
    limit_s = attached._remaining_limit_s
    request = {"group_timeout_s": 300.0}
    assert limit_s(request, failed(0, "ValueError: no such file")) == 310.0
    assert limit_s(request, failed(0, "Connection closed by peer")) == 10.0
    assert limit_s(request, failed(0, "DistStoreError: Wait timeout")) == 10.0
    assert limit_s(request, {"state": "done"}) == 600.0
    assert limit_s({"probe": True}, {"host": "n1"}) == 120.0


def test_a_failed_probe_returns_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "_describe_node", lambda evidence: [][0])
    answer = attached._probe(3, NodeEvidence(3, io.StringIO()))
    assert (answer["rank"], answer["state"]) == (3, "failed")
    assert answer["error"]["message"] == "IndexError: list index out of range"


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ({"SLURM_NODEID": "2"}, "2"),
        ({"SLURM_NODEID": "0", "GROUP_RANK": "1", "TORCHELASTIC_RUN_ID": "x"}, "1"),
        ({"TORCHELASTIC_RUN_ID": "x"}, None),
        ({}, None),
    ],
)
def test_torchrun_in_a_step_counts_nodes_by_itself(
    variables: dict[str, str], number: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_NODEID", "GROUP_RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert attached._node_number() == number


@pytest.fixture
def two_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores on two sockets; rank 1 of two local ranks."""
    sockets = {"a": frozenset(range(4)), "b": frozenset(range(4, 8))}
    monkeypatch.setattr(attached, "_all_cores", lambda: list(range(8)))
    monkeypatch.setattr(attached, "cores_near", lambda bus: None if bus is None else sockets[bus])
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")


@pytest.mark.usefixtures("two_sockets")
@pytest.mark.parametrize(
    ("buses", "expected"),
    [
        (["a", "b"], [4, 5, 6, 7]),
        (["b", "a"], [0, 1, 2, 3]),
        (["b", "b"], [6, 7]),
        ([None, None], [4, 5, 6, 7]),  # a share of all
    ],
)
def test_a_rank_on_a_gpu_is_pinned_next_to_it(
    buses: list[str | None], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "_gpu_buses", lambda ranks: buses)
    assert attached._own_cores({"pin_cores": "yes", "device": "cuda"}) == expected
    assert attached._own_cores({"pin_cores": "auto", "device": "cuda"}) == []
