"""Ranks of torchrun or srun that make no progress."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from scalescope.results.ranks import RankStage
from scalescope.worker.process import health
from scalescope.worker.process.health import StallWatch, answer_key
from scalescope.worker.process.position import Position
from scalescope.worker.process.rendezvous import Rendezvous
from tests.speed import patience

Records = dict[int, dict[str, Any]]


def _request(**limits: float | None) -> dict[str, Any]:
    return {
        "ranks": [0, 1],
        "group_timeout_s": 0.05,
        "limits": {"init": 60.0, "warmup": 60.0, "stall": None, **limits},
    }


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rendezvous:
    """The store of two ranks, as rank 0 has it; nobody waits long."""
    for name, value in (("RANK", 0), ("WORLD_SIZE", 2), ("SCALESCOPE_STORE_FILE", tmp_path / "store")):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(health, "_POLL_S", 0.01)
    monkeypatch.setattr(health, "_SETTLE_S", 0.2)
    monkeypatch.setattr(health, "_leave", lambda: None)
    return Rendezvous()


class Reported:
    """What a watch reported, once it has."""

    def __init__(self) -> None:
        self.records: Records = {}
        self.event = threading.Event()

    def __call__(self, records: Records) -> None:
        self.records = records
        self.event.set()

    def wait(self) -> Records:
        assert self.event.wait(patience(30)), "nothing was reported"
        return self.records


def _watched(rank: int, report: Reported, steps: int) -> StallWatch:
    position = Position(None, rank, 2)
    position.enter(RankStage.STEADY)
    position.begin_step(steps)
    return StallWatch(_request(stall=0.05), 4, rank, position, report)


def test_rank_0_reports_where_every_rank_is(store: Rendezvous) -> None:
    report = Reported()
    with _watched(1, Reported(), steps=3):
        _watched(0, report, steps=7).__enter__()  # it stays: the command line would end it
        records = report.wait()
    assert [records[rank]["error"]["step"] for rank in (0, 1)] == [6, 2]
    assert records[1]["error"]["position"] < records[0]["error"]["position"]
    assert all(record["error"]["stalled"] for record in records.values())


def test_a_rank_that_never_answers_is_left_out(store: Rendezvous) -> None:
    report = Reported()
    _watched(0, report, steps=7).__enter__()
    assert list(report.wait()) == [0]


def test_a_rank_that_failed_is_reported_by_its_own_error(store: Rendezvous) -> None:
    error = {"state": "failed", "error": {"message": "ValueError: my own mistake"}}
    store.publish(answer_key(4, 1), json.dumps(error))
    report = Reported()
    _watched(0, report, steps=7).__enter__()
    assert report.wait()[1] == error


def test_progress_is_not_a_stall(store: Rendezvous) -> None:
    report = Reported()
    position = Position(None, 0, 2)
    with StallWatch(_request(), 4, 0, position, report):
        position.enter(RankStage.STEADY, slowest_warmup_s=0.1)
    assert not report.event.is_set()


def test_every_stage_has_its_limit() -> None:
    position = Position(None, 0, 2)
    watch = StallWatch(_request(init=5.0, warmup=7.0), 4, 0, position, Reported())
    assert [watch.limit_s(stage) for stage in (RankStage.JOINING, RankStage.WARMUP)] == [5.0, 7.0]
    assert watch.limit_s(RankStage.STEADY) == 30.0
    position.enter(RankStage.STEADY, slowest_warmup_s=2.0)
    assert watch.limit_s(RankStage.STEADY) == 40.0
    assert StallWatch(_request(stall=3.0), 4, 0, position, Reported()).limit_s(RankStage.STEADY) == 3.0
