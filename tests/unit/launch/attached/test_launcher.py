"""Ranks that are there already: which of them take part, what they keep, and who is to blame."""

import pytest

from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.launch.attached import launcher as attached
from scalescope.launch.attached.launcher import AttachedLauncher, members_of
from scalescope.launch.attached.rank_context import RankContext

NODES = [(0, 2, 4), (1, 3, 5, 7), (6,)]  # as `srun --distribution=cyclic` may deal them out


@pytest.mark.parametrize(
    ("among", "ranks", "members"),
    [
        ("all", 3, [0, 1, 2]),
        ("all", 8, list(range(8))),
        ("one_node", 3, [0, 2, 4]),  # rank 0's node, where it has enough
        ("one_node", 4, [1, 3, 5, 7]),
        ("one_per_node", 3, [0, 1, 6]),
        ("one_per_node", 2, [0, 1]),
    ],
)
def test_members(among: str, ranks: int, members: list[int]) -> None:
    assert members_of(Trial(settings={"world_size": ranks, "among": among}), NODES) == members


def test_older_trials_are_among_all() -> None:
    assert members_of(Trial(settings={"world_size": 2}), NODES) == [0, 1]


def test_what_running_ranks_keep_cannot_be_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "start_worker", lambda *_, **__: None)
    launcher = AttachedLauncher(RankContext(0, 4))
    fixed = {"env": None, "link": None, "split_gpu": None, "pin_cores": "auto", "threads_per_rank": 1}
    launcher.check(Trial(settings={"world_size": 2, **fixed}))
    launcher.check(Trial(settings={"world_size": 4, **fixed}))
    with pytest.raises(BadInput, match=r"--pin-cores: .* keep their cores"):
        launcher.check(Trial(settings={"world_size": 4, **fixed, "pin_cores": "no"}))
    with pytest.raises(BadInput, match="--threads-per-rank"):
        launcher.check(Trial(settings={"world_size": 4, **fixed, "threads_per_rank": 2}))
