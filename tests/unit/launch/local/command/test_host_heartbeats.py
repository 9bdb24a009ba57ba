"""How far ranks are of which some are on other nodes, which write no heartbeats."""

from pathlib import Path
from typing import Any

import pytest

from scalescope.launch.local.command.host_heartbeats import HostHeartbeats
from scalescope.results.ranks.heartbeat import Beat, Phase, RankStage

_RANKS = 3  # the first two are on this host


@pytest.fixture
def records() -> list[dict[str, Any]]:
    return [{} for _ in range(_RANKS)]


@pytest.fixture
def beats(tmp_path: Path, records: list[dict[str, Any]]) -> HostHeartbeats:
    beats = HostHeartbeats(tmp_path / "beats", _RANKS, create=True)
    beats.records = [lambda rank=rank: records[rank] for rank in range(_RANKS)]
    return beats


def _at(step: int, stage: RankStage = RankStage.STEADY) -> Beat:
    return Beat(step, step + 1, stage, Phase.INPUT, 0.5, 40)


def test_a_rank_of_another_node_has_not_begun_before_it_wrote_a_record(beats: HostHeartbeats) -> None:
    beats.write(0, _at(7))
    assert beats.read(2).stage == RankStage.STARTING


def test_it_is_then_as_far_as_the_furthest_rank_here(
    beats: HostHeartbeats, records: list[dict[str, Any]]
) -> None:
    records[2] = {"state": "running"}
    assert beats.read(2).stage == RankStage.WARMUP
    beats.write(0, _at(7))
    beats.write(1, _at(8))
    assert beats.read(2) == _at(8)
    assert [beats.read(rank) for rank in (0, 1)] == [_at(7), _at(8)]


def test_a_record_that_is_done_is_a_rank_that_leaves(
    beats: HostHeartbeats, records: list[dict[str, Any]]
) -> None:
    beats.write(0, _at(7))
    records[2] = {"state": "done"}
    assert beats.read(2).stage == RankStage.TEARDOWN
