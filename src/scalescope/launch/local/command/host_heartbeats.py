"""Heartbeats where only some ranks can write them: those on this host, and not on other nodes."""

from collections.abc import Callable, Sequence
from typing import Any

from scalescope.results.ranks.heartbeat import Beat, Heartbeats, Phase, RankStage


class HostHeartbeats(Heartbeats):
    """A rank of another node is where its record says, and then as far as the furthest rank of this host.

    All ranks step together, so one that stops shows here too; which one it was is then unknown.
    """

    records: Sequence[Callable[[], dict[str, Any]]] = ()  # by rank: what it has written so far

    def read(self, rank: int) -> Beat:
        beat = super().read(rank)
        state = None if beat.stage > RankStage.STARTING else self.records[rank]().get("state")
        if state == "running":
            beats_here = (Heartbeats.read(self, other) for other in range(len(self.records)))
            furthest = max(beats_here, key=lambda other: other.position)
            begun = Beat(0, 0, RankStage.WARMUP, Phase.INPUT, 0.0)
            return max(begun, furthest, key=lambda other: other.position)
        return Beat(0, 0, RankStage.TEARDOWN, Phase.INPUT, 0.0) if state == "done" else beat
