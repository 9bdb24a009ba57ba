"""Ranks that are there already: which of them take part, what they keep, and who is to blame."""

import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from scalescope.errors import BadInput, ScalescopeError
from scalescope.experiment.machine import Gpu
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import RanksLost
from scalescope.launch.probing import Node
from scalescope.launch.telemetry import sampler
from scalescope.launch.torchrun import launcher as attached
from scalescope.launch.torchrun.launcher import AttachedLauncher, members_of
from scalescope.launch.torchrun.rank_context import RankContext
from scalescope.results.result import WINDOW
from scalescope.results.run_folder import RunFolder
from tests.builders.commands import Recorder, command_trial
from tests.builders.launching import usual_limits
from tests.simulated.launcher import TWO_CORES

NODES = [(0, 2, 4), (1, 3, 5, 7), (6,)]  # as `srun --distribution=cyclic` may deal them out


@pytest.mark.parametrize(
    ("among", "ranks", "members"),
    [
        ("all", 8, list(range(8))),
        ("one_node", 3, [0, 2, 4]),  # rank 0's node, where it has enough
        ("one_node", 4, [1, 3, 5, 7]),
        ("one_per_node", 3, [0, 1, 6]),
        ("one_per_node", 2, [0, 1]),
        (None, 2, [0, 1]),  # a benchmark without this setting
    ],
)
def test_members(among: str | None, ranks: int, members: list[int]) -> None:
    settings = {"world_size": ranks} | ({} if among is None else {"among": among})
    assert members_of(Trial(settings=settings), NODES) == members


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


def test_a_command_is_refused_by_ranks_that_are_already_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "start_worker", lambda *_, **__: None)
    with pytest.raises(BadInput, match="outside torchrun and srun"):
        AttachedLauncher(RankContext(0, 4)).check(command_trial("torchrun train.py"))


class Worker:
    """Rank 0's worker, whose ranks on two nodes answer a trial."""

    def __init__(self, answers: Sequence[dict[str, Any]], **more: Any) -> None:
        self.stdin = io.BytesIO()
        self.stdout = io.BytesIO(json.dumps({"answers": list(answers), **more}).encode() + b"\n")
        self.is_killed = False

    def kill(self) -> None:
        self.is_killed = True

    def wait(self) -> int:
        return -9

    @property
    def request(self) -> dict[str, Any]:
        request: dict[str, Any] = json.loads(self.stdin.getvalue())
        return request


def _launch(
    worker: Worker, folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: int = 0, **settings: Any
) -> tuple[Trial, dict[str, Any]]:
    """Launch a trial on two nodes of two ranks; returns it and its telemetry."""
    monkeypatch.setattr(attached, "start_worker", lambda *_, **__: worker)
    made = tuple(Gpu(index=n, name="made up", memory_bytes=1, uuid=f"id-{n}") for n in range(gpus))
    machine = dataclasses.replace(TWO_CORES, gpus=made)
    nodes = {
        "n1": Node(machine=machine, system={}, ranks=(0, 1), first_rank=0, pids=(10, 11)),
        "n2": Node(machine=machine, system={}, ranks=(2, 3), first_rank=2, pids=(20, 21)),
    }
    monkeypatch.setattr(AttachedLauncher, "_probed_nodes", lambda self: nodes)
    for name in ("ranks", "logs"):
        (folder / name).mkdir()
    trial = Trial(settings={"benchmark": "train", "device": "cpu", "split_gpu": None, **settings})
    launcher = AttachedLauncher(RankContext(0, 4))
    outcome = launcher.launch(trial, 0, RunFolder(folder), usual_limits(), Recorder())
    return trial, outcome.telemetry


def _done(rank: int, **more: Any) -> dict[str, Any]:
    window = dict(zip(WINDOW, (0.0, 1e12), strict=True))
    return {"rank": rank, "host": "n", "state": "done", "counters": window, **more}


def test_every_node_s_telemetry_and_every_rank_s_log_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"cpu": {"host_utilization": 0.25}}
    log = "n1:1:1 [0] NCCL INFO Using network IB\n"
    ranks = [_done(0, nccl_log=log), _done(1), _done(2, telemetry=there, nccl_log=log), _done(3)]
    worker = Worker(ranks)
    trial, telemetry = _launch(worker, tmp_path, monkeypatch, world_size=4)
    assert list(telemetry["hosts"]) == ["n1", "n2"]
    assert telemetry["hosts"]["n2"] == there
    assert worker.request["watch"] == {"2": {"gpus": [], "pids": [20, 21]}}  # rank 0's node is sampled here
    assert RunFolder(tmp_path).log_file(trial.trial_id, 0, 2).read_text() == log
    stored = json.loads(RunFolder(tmp_path).rank_file(trial.trial_id, 0, 2).read_text())
    assert not {"telemetry", "nccl_log"} & set(stored)


def test_a_node_without_ranks_in_a_trial_is_not_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker([_done(0), _done(1)])
    _, telemetry = _launch(worker, tmp_path, monkeypatch, world_size=2)
    assert worker.request["watch"] == {}
    assert "hosts" not in telemetry and "cpu" in telemetry


def test_the_gpus_of_the_trial_are_sampled_on_every_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml, opened = mock.Mock(problem=None), []
    nvml.read.return_value, nvml.history.return_value = {}, {}
    monkeypatch.setattr(sampler, "Nvml", lambda uuids: opened.append(uuids) or nvml)
    worker = Worker([_done(rank) for rank in range(4)])
    _launch(worker, tmp_path, monkeypatch, gpus=2, world_size=4, device="cuda")
    assert opened == [("id-0", "id-1")]
    assert nvml.close.call_count == 1
    assert worker.request["watch"] == {"2": {"gpus": ["id-0", "id-1"], "pids": [20, 21]}}


def _failed(rank: int, message: str, **more: Any) -> dict[str, Any]:
    error = {"message": message, "at_wall_s": 0.0, "step": None, "out_of_memory": False, **more}
    return {"rank": rank, "host": "n", "state": "failed", "error": error}


def _stalled(rank: int, step: int) -> dict[str, Any]:
    return _failed(rank, "no progress for 9 s", step=step, stalled=True, position=[3, step, step + 1, 0])


@pytest.mark.parametrize(
    ("second", "status", "code", "reason"),
    [
        (_stalled(1, 5), "hang", 5, "rank 1 hangs at step 5: no progress for 9 s"),
        (_stalled(1, 8), "hang", 5, "all ranks hang at step 8: no progress for 9 s"),
        (_failed(1, "lost", lost=True), "hang", 5, "rank 1 does not answer: no progress for 9 s"),
        (_done(1), "hang", 5, "rank 0 hangs at step 8: no progress for 9 s"),
        (_failed(1, "ValueError: mine", step=5), "failed", 4, "rank 1 failed at step 5: ValueError: mine"),
    ],
)
def test_the_rank_that_the_others_wait_for_is_named(
    second: dict[str, Any],
    status: str,
    code: int,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker([_stalled(0, 8), second], hang=True)
    with pytest.raises(RanksLost) as lost:
        _launch(worker, tmp_path, monkeypatch, world_size=2)
    assert (lost.value.outcome.status, lost.value.exit_code, lost.value.outcome.reason) == (
        status,
        code,
        reason,
    )
    assert "the other ranks cannot continue" in str(lost.value)
    assert worker.is_killed


@pytest.mark.parametrize("code", [3, 5])
def test_what_the_worker_could_not_do_ends_the_command_with_its_code(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker([], refused={"message": "rank 1 of 2 did not join", "exit_code": code})
    monkeypatch.setattr(attached, "start_worker", lambda *_, **__: worker)
    with pytest.raises(ScalescopeError, match="rank 1 of 2 did not join") as error:
        AttachedLauncher(RankContext(0, 2)).machine()
    assert error.value.exit_code == code
