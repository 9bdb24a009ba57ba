"""Which of the ranks that are there take part in a trial."""

import pytest

from scalescope.experiment.trial import Trial
from scalescope.launch.attached import members_of

NODES = [(0, 2, 4), (1, 3, 5, 7), (6,)]  # as `srun --distribution=cyclic` may deal them out


@pytest.mark.parametrize(
    ("among", "ranks", "members"),
    [
        ("all", 3, [0, 1, 2]),
        ("all", 8, list(range(8))),
        ("one node", 3, [1, 3, 5]),
        ("one node", 4, [1, 3, 5, 7]),
        ("one a node", 3, [0, 1, 6]),
        ("one a node", 2, [0, 1]),
    ],
)
def test_members(among: str, ranks: int, members: list[int]) -> None:
    assert members_of(Trial(settings={"world_size": ranks, "among": among}), NODES) == members


def test_older_trials_are_among_all() -> None:
    assert members_of(Trial(settings={"world_size": 2}), NODES) == [0, 1]
