"""A rank without torch: it takes its steps, reports its stage, waits for its peers, and has its fault.

Run as `python -m tests.builders.acted_rank RANK RANKS FOLDER`: it starts in a tenth of a second.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from scalescope.results.files import write_atomically
from scalescope.results.ranks import Beat, Heartbeats, Phase, RankStage
from scalescope.worker.process.faults import Fault, fault_of
from scalescope.worker.process.main import enable_stack_dumps
from scalescope.worker.process.position import Position

STEPS = 8
WARMUP_STEPS = 3


def main() -> None:
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    enable_stack_dumps()
    fault = fault_of(rank) or Fault(kind="none", argument=0, step=0)
    position, peers = Position(folder / "beats", rank, ranks), Heartbeats(folder / "beats", ranks)
    fault.at_stage("init")
    position.enter(RankStage.JOINING)
    _wait_for_peers(peers, ranks, lambda beat: beat.stage >= RankStage.JOINING)
    position.enter(RankStage.WARMUP)
    for step in range(STEPS):
        if step == WARMUP_STEPS:
            position.enter(RankStage.STEADY, slowest_warmup_s=0.0)
        position.begin_step()
        fault.at_step(step)
        position.mark(Phase.BACKWARD)
        _wait_for_peers(peers, ranks, lambda beat: beat.begun >= position.begun)
        position.completed += 1
    write_atomically(folder / f"{rank}.json", json.dumps({"rank": rank, "state": "done"}))
    position.enter(RankStage.TEARDOWN)
    fault.at_stage("teardown")
    position.enter(RankStage.DONE)
    fault.at_stage("exit")


def _wait_for_peers(peers: Heartbeats, ranks: int, arrived: Callable[[Beat], bool]) -> None:
    """As in a collective: no rank leaves before all have arrived."""
    while not all(arrived(peers.read(rank)) for rank in range(ranks)):
        time.sleep(0.002)


if __name__ == "__main__":
    main()
