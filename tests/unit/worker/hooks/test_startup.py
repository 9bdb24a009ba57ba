"""Before the script runs: which rank a process is, imports, errors of hooks, trackers."""

import importlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace

import pytest

from scalescope.results.ranks import AttachJob
from scalescope.worker.hooks import startup
from scalescope.worker.hooks.events import Trackers
from scalescope.worker.hooks.hook_guard import HookGuard
from scalescope.worker.hooks.imports import after_import, apart_from_script, forget_imports

_VARIABLES = ("RANK", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURMD_NODENAME")
_BATCH = {"SLURM_PROCID": "0"}  # what a job's script has
_TASK = {"SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, None),
        ({"RANK": "1"}, 1),
        (_TASK, 3),
        (_TASK | {"RANK": "1"}, 1),
        (_BATCH, None),
        (_BATCH | {"RANK": "1"}, 1),
        (_TASK | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"RANK": "one"}, None),
    ],
)
def test_ranks_are_those_of_a_launcher_and_not_of_a_job_script(
    variables: dict[str, str], rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert startup.rank_from_environment() == rank


def _job(node: str) -> AttachJob:
    return AttachJob(
        settings={},
        launch=0,
        world_size=2,
        directory="/run/launch",
        rank_files=["/run/0", "/run/1"],
        heartbeat_file="/dev/shm/launch/beats",
        folder="/run",
        parent=4711,
        package_parent="/lib",
        node=node,
    )


def test_only_on_the_node_of_the_launcher_the_launcher_and_its_memory_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    job = startup._on_this_node(_job("n1"))
    assert job.parent == 0
    assert job.heartbeat_file != _job("n1").heartbeat_file
    assert job.rank_files == _job("n1").rank_files
    for node in ("", "n2"):
        assert startup._on_this_node(_job(node)) == _job(node)


def test_the_action_comes_after_the_whole_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_module.py").write_text("import json\nvalue = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen_values: list[int] = []
    after_import("late_module", lambda: seen_values.append(sys.modules["late_module"].value))
    try:
        assert seen_values == []
        module = importlib.import_module("late_module")
        assert seen_values == [1]
        assert module.__spec__ is not None
        importlib.reload(module)
        assert seen_values == [1]
    finally:
        forget_imports()
        sys.modules.pop("late_module", None)


def test_a_module_that_is_there_is_acted_on_at_once_and_one_that_is_nowhere_fails_as_usual() -> None:
    acted: list[int] = []
    after_import("json", lambda: acted.append(1))
    assert acted == [1]
    after_import("no_such_module_at_all", lambda: None)
    try:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("no_such_module_at_all")
    finally:
        forget_imports()


def test_modules_of_a_script_are_not_ours_and_ours_not_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("colorsys", "only_of_script"):
        (tmp_path / f"{name}.py").write_text("is_of_script = True\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(sys.modules, "plistlib", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = [*sys.path]
    with apart_from_script():
        ours = importlib.import_module("colorsys")
        importlib.import_module("plistlib")
    assert sys.path == before
    assert hasattr(ours, "rgb_to_hls")
    assert "plistlib" in sys.modules  # the script has no other
    assert importlib.import_module("colorsys").is_of_script
    assert importlib.import_module("only_of_script").is_of_script
    for name in ("colorsys", "only_of_script"):
        del sys.modules[name]


class Stop(Exception):
    """How some scripts leave their loop."""


def test_an_error_is_reported_and_not_raised_also_from_code_of_the_script() -> None:
    def shape_of_a_batch() -> None:
        raise RuntimeError("hostile")

    errors: list[Exception] = []
    with HookGuard(errors.append):
        shape_of_a_batch()
    assert [str(error) for error in errors] == ["hostile"]


def test_what_a_signal_handler_raises_inside_a_hook_goes_on() -> None:
    def handler(number: int, frame: FrameType | None) -> None:
        raise Stop

    errors: list[Exception] = []
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        with pytest.raises(Stop), HookGuard(errors.append):
            os.kill(os.getpid(), signal.SIGUSR2)
            signal.pthread_sigmask(signal.SIG_BLOCK, ())  # a call in which the handler runs
    finally:
        signal.signal(signal.SIGUSR2, before)
    with pytest.raises(KeyboardInterrupt), HookGuard(errors.append):
        raise KeyboardInterrupt
    assert errors == []


def test_calls_of_a_tracker_are_counted_and_send_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    wandb = ModuleType("wandb")
    wandb.log = sent.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    trackers = Trackers()
    trackers.install()
    wandb.log({"loss": 1.0})
    trackers.remove()
    assert (sent, trackers.calls) == ([], {"wandb.log": 1})
    wandb.log("after")
    assert sent == ["after"]


def test_uploads_to_a_hub_end_well_and_send_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class HfApi:
        def upload_folder(self, **kwargs: object) -> None:
            raise ConnectionError

        create_commit = create_repo = upload_folder

    hub = SimpleNamespace(HfApi=HfApi)
    monkeypatch.setitem(sys.modules, "huggingface_hub.hf_api", hub)  # type: ignore[arg-type]
    trackers = Trackers()
    trackers.install()
    api = HfApi()
    assert api.create_repo("me/model").repo_id == "me/model"  # type: ignore[call-arg,attr-defined,func-returns-value]
    assert api.upload_folder(run_as_future=True).result() is None  # type: ignore[attr-defined,func-returns-value]
    api.create_commit()
    trackers.remove()
    assert trackers.calls == {"HfApi.create_repo": 1, "HfApi.upload_folder": 1, "HfApi.create_commit": 1}
