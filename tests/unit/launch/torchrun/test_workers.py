"""Workers of attached ranks: they do not outlive rank 0, log what NCCL does, and watch their node."""

import contextlib
import subprocess
from pathlib import Path

import pytest

from scalescope.errors import TimedOut
from scalescope.launch.torchrun import children
from scalescope.launch.torchrun.children import Leader, nccl_log_variables, worker_variables
from scalescope.launch.torchrun.rank_context import RankContext


def test_a_follower_does_not_wait_for_ever_for_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "start_worker", lambda *_, **__: subprocess.Popen(["sleep", "600"]))
    monkeypatch.setattr(children, "_LEADER_POLL_S", 0.01)
    monkeypatch.setattr(children, "shared_directory", lambda name: contextlib.nullcontext(tmp_path))
    with pytest.raises(TimedOut, match="rank 0 did not appear"):
        children.follow(RankContext(1, 2, directory="77.0.0"), 0.05)


class Started:
    """What a worker was started with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.variables: dict[str, str] = {}
        self.pipes: tuple[int, int] = (0, 0)
        monkeypatch.setattr(children, "start_worker", self)

    def __call__(self, variables: dict[str, str], stdin: int, stdout: int) -> "subprocess.Popen[bytes]":
        self.variables, self.pipes = variables, (stdin, stdout)
        return subprocess.Popen(["true"], stdin=stdin, stdout=stdout)


@pytest.mark.parametrize(("local_rank", "watched"), [("0", True), ("1", False)])
def test_the_first_rank_of_a_node_has_it_watched(
    monkeypatch: pytest.MonkeyPatch, local_rank: str, watched: bool
) -> None:
    started = Started(monkeypatch)
    context = RankContext(4, 8, {"LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": "4"})
    assert children.follow(context) == 0
    assert ("SCALESCOPE_NODE_WATCH" in started.variables) is watched
    pipe = subprocess.PIPE if watched else subprocess.DEVNULL
    assert started.pipes == (pipe, pipe)


@pytest.mark.parametrize("takes_its_file", [False, True])
def test_a_leader_is_gone_when_it_lets_go_and_one_that_has_not_come_is_waited_for(
    tmp_path: Path, takes_its_file: bool
) -> None:
    leader, other = Leader(tmp_path), Leader(tmp_path)
    assert not other.is_gone()
    leader.acquire()
    assert not other.is_gone()
    if takes_its_file:
        (tmp_path / "leader").unlink()
    else:
        leader.release()
    assert other.is_gone()


def test_every_rank_logs_how_it_connects_into_a_file_of_its_own(tmp_path: Path) -> None:
    variables = nccl_log_variables({}, tmp_path)
    assert variables["NCCL_DEBUG"] == "INFO"
    assert variables["NCCL_DEBUG_SUBSYS"] == "INIT,GRAPH,NET,ENV"  # no line per collective
    assert variables["NCCL_DEBUG_FILE"] == variables["SCALESCOPE_NCCL_LOG"] == str(tmp_path / "nccl.log")


def test_what_the_user_set_is_respected(tmp_path: Path) -> None:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE"):
        assert nccl_log_variables({name: "WARN"}, tmp_path) == {}
    assert nccl_log_variables({"NCCL_DEBUG_SUBSYS": "ALL"}, tmp_path)["NCCL_DEBUG_SUBSYS"] == "ALL"


def test_the_worker_starts_with_these_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"):
        monkeypatch.delenv(name, raising=False)
    with contextlib.ExitStack() as held:
        first, _ = worker_variables(RankContext(0, 2), held, 300.0)
        second, _ = worker_variables(RankContext(1, 2), held, 300.0)
        assert first["NCCL_DEBUG"] == second["NCCL_DEBUG"] == "INFO"
        assert first["NCCL_DEBUG_FILE"] != second["NCCL_DEBUG_FILE"]
        assert Path(first["NCCL_DEBUG_FILE"]).parent.is_dir()
    assert not Path(first["NCCL_DEBUG_FILE"]).parent.exists()
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    with contextlib.ExitStack() as held:
        assert worker_variables(RankContext(0, 2), held, 300.0) == ({"SCALESCOPE_INIT_TIMEOUT": "300"}, None)
