"""Names both ranks where they call different collectives; the one that the library ends is not the cause."""

import dataclasses
from pathlib import Path

from scalescope.launch.launcher import Outcome
from scalescope.results.ranks.collective_calls import find_disagreement, read_calls


def explained_by_calls(outcome: Outcome, directory: Path, world_size: int) -> Outcome:
    """The outcome of a launch, which has failed by disagreement where its ranks' last calls differ."""
    if outcome.status not in ("failed", "hang") or outcome.bad_input:
        return outcome
    disagreement = find_disagreement(read_calls(directory, world_size))
    if disagreement is None:
        return outcome
    (first, second), calls = disagreement.ranks, disagreement.calls
    where = "" if outcome.step is None else f" at step {outcome.step}"
    return dataclasses.replace(
        outcome,
        status="failed",
        rank=None,
        reason=f"ranks {first} and {second} call different collectives{where}: "
        f"rank {first} {calls[0]}, rank {second} {calls[1]}",
    )
