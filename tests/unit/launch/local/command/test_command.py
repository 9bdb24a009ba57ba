"""What a command and its ranks find in their environment, how far they are, and their private view."""

from pathlib import Path
from typing import Any, cast

import pytest

from scalescope.errors import CannotRun
from scalescope.experiment.machine import Gpu
from scalescope.experiment.trial import Trial
from scalescope.launch.local.command import views
from scalescope.launch.local.command.environment import command_environment, rank_environments
from scalescope.launch.local.command.evidence import HostHeartbeats
from scalescope.launch.local.command.views import Views, _around, _covered
from scalescope.launch.local.emulation import SplitGpu
from scalescope.private_view import OVERLAY, REDIRECT, changed_files, is_below, remove_tree
from scalescope.results.ranks import Beat, Phase, RankStage
from tests.builders.commands import command_trial


class _Split:
    """The variables of a split GPU without its daemon."""

    def environment_of(self, rank: int) -> dict[str, str]:
        return {"CUDA_MPS_PIPE_DIRECTORY": "/pipe", "NCCL_HOSTID": f"scalescope-{rank}"}


_SPLIT = cast(SplitGpu, _Split())
_GPUS = cast("tuple[Gpu, ...]", (object(), object()))


def _trial(**settings: Any) -> Trial:
    return command_trial("torchrun train.py", world_size=2, device="cuda", **settings)


def _environment(trial: Trial, ranks: list[dict[str, str]]) -> dict[str, str]:
    return command_environment(trial, {"PATH": "/bin"}, Path("/d/job.json"), Path("/d/python"), ranks)


def test_parts_of_a_gpu_are_the_first_device_of_every_rank() -> None:
    ranks = rank_environments(_trial(split_gpu=2), _SPLIT, _GPUS)
    assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "0"]
    assert [rank["NCCL_HOSTID"] for rank in ranks] == ["scalescope-0", "scalescope-1"]


def test_the_command_has_what_all_ranks_of_a_split_gpu_share() -> None:
    trial = _trial(split_gpu=2)
    environment = _environment(trial, rank_environments(trial, _SPLIT, _GPUS))
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == "/pipe"
    assert not {"NCCL_HOSTID", "LOCAL_RANK"} & set(environment)


def test_ranks_that_share_gpus_have_host_ids_of_their_own() -> None:
    ranks = rank_environments(command_trial("x", world_size=3, oversubscribe=True), None, _GPUS)
    assert [rank["NCCL_HOSTID"] for rank in ranks] == ["scalescope-0", "scalescope-1", "scalescope-2"]
    assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "1", "0"]


def test_what_the_user_sets_wins_over_what_a_rank_gets() -> None:
    trial = _trial(split_gpu=2, env={"NCCL_HOSTID": "mine", "PYTHONPATH": "/theirs"})
    ranks = rank_environments(trial, _SPLIT, _GPUS)
    assert all("NCCL_HOSTID" not in rank for rank in ranks)
    environment = _environment(trial, ranks)
    assert (environment["NCCL_HOSTID"], environment["PYTHONPATH"]) == ("mine", "/d/python:/theirs")


def test_ranks_with_a_gpu_each_get_nothing_of_their_own() -> None:
    assert rank_environments(_trial(), None, _GPUS) == []
    assert rank_environments(_trial(split_gpu=2, keep_running=True), _SPLIT, _GPUS) == []


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


def test_folders_below_are_told_by_whole_names() -> None:
    assert is_below("/a/b", ["/a"]) and is_below("/a", ["/a"])
    assert not is_below("/ab", ["/a"])


def test_in_a_shared_folder_the_whole_project_is_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "SHARED", (str(tmp_path),))
    (project := tmp_path / "project" / "scripts").mkdir(parents=True)
    (output := tmp_path / "output" / "deep").mkdir(parents=True)
    monkeypatch.chdir(project)
    words = ["python", "train.py", f"--out={output}", "/none", str(tmp_path)]
    assert _covered(words) == [str(tmp_path / "project"), str(tmp_path / "output")]


def test_beside_a_covered_folder_the_others_stay_writable(tmp_path: Path) -> None:
    for name in ("a/x", "a/y", "b"):
        (tmp_path / name).mkdir(parents=True)
    assert list(_around(str(tmp_path), [str(tmp_path / "a/x")])) == [
        str(tmp_path / "a/y"),
        str(tmp_path / "b"),
    ]
    assert list(_around(str(tmp_path), ["/elsewhere"])) == [str(tmp_path)]


def test_caches_pass_through_unless_they_hold_the_project(tmp_path: Path) -> None:
    cache = tmp_path / ".cache" / "huggingface"
    cache.mkdir(parents=True)
    chosen = Views({"HOME": str(tmp_path), "TORCH_HOME": str(tmp_path)})
    paths = chosen._writable([str(tmp_path / "project")], [], OVERLAY)
    assert paths == [str(tmp_path / ".cache"), str(cache)]


def test_without_overlays_and_landlock_nothing_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(views, "_works", lambda view: tried.append(view.kind))
    with pytest.raises(
        CannotRun, match="neither mount namespaces with overlays nor Landlock; use --allow-writes"
    ):
        Views().check(["python", "x.py"], None)
    assert tried == [OVERLAY, REDIRECT]
    assert Views().check(["python", "x.py"], Path("kept")) == REDIRECT


def test_a_shell_script_that_slurm_starts_is_refused() -> None:
    with pytest.raises(CannotRun, match="srun starts a shell script"):
        Views().check(["srun", "bash", "run.sh"], None)


def test_a_kind_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(views, "_works", lambda view: tried.append(view.kind) or True)
    chosen = Views()
    assert [chosen.check(["python", "x.py"], None) for _ in range(3)] == [OVERLAY] * 3
    assert tried == [OVERLAY]


def test_changed_files_have_the_paths_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "0-path").write_text("/home")
    (tmp_path / "0-changes" / "me").mkdir(parents=True)
    (tmp_path / "0-changes" / "me" / "ckpt.pt").write_text("x")
    (tmp_path / "files" / "data").mkdir(parents=True)
    (tmp_path / "files" / "data" / "log").write_text("y")
    assert [path for path, _ in changed_files(tmp_path)] == ["/home/me/ckpt.pt", "/data/log"]


def test_a_folder_that_nobody_may_read_is_removed(tmp_path: Path) -> None:
    (tmp_path / "view" / "work" / "work").mkdir(parents=True)
    (tmp_path / "view" / "work" / "work").chmod(0)
    remove_tree(tmp_path / "view")
    assert not (tmp_path / "view").exists()
