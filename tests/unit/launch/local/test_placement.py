"""Where ranks run: cores without overlap, parts of a GPU, and what is known before torch is loaded."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scalescope.experiment.machine import Gpu
from scalescope.experiment.trial import Trial
from scalescope.launch.local import emulation
from scalescope.launch.local import logs as module
from scalescope.launch.local.emulation import SplitGpu
from scalescope.launch.local.logs import outlook, visible_gpus
from scalescope.launch.local.processes import cpus_for


def _trial(ranks: int, threads: int, device: str = "cpu") -> Trial:
    return Trial(settings={"world_size": ranks, "threads_per_rank": threads, "device": device})


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six cores that do not begin at 0, in no order."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {9, 4, 5, 8, 6, 7}, raising=False)


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize(
    ("ranks", "threads", "expected"),
    [
        (1, 6, [[4, 5, 6, 7, 8, 9]]),
        (2, 3, [[4, 5, 6], [7, 8, 9]]),
        (2, 2, [[4, 5], [7, 8]]),
        (6, 1, [[4], [5], [6], [7], [8], [9]]),
        (2, 4, [[], []]),
        (7, 1, [[]] * 7),
    ],
)
def test_ranks_get_cores_of_their_own(ranks: int, threads: int, expected: list[list[int]]) -> None:
    assert [cpus_for(_trial(ranks, threads), rank) for rank in range(ranks)] == expected


@pytest.mark.usefixtures("cores")
def test_ranks_on_gpus_are_not_pinned() -> None:
    assert cpus_for(_trial(2, 1, "cuda"), 0) == []


def test_a_system_without_affinity_pins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cpus_for(_trial(1, 1), 0) == []


SOCKETS = {"a": frozenset({4, 5, 6}), "b": frozenset({7, 8, 9})}


def _gpus(*sockets: str) -> list[Gpu]:
    return [
        Gpu(index=index, name="GPU", memory_bytes=1, uuid=f"{index}", pci_bus=socket)
        for index, socket in enumerate(sockets)
    ]


def _pinned(ranks: int, gpus: list[Gpu], **settings: object) -> list[list[int]]:
    trial = Trial(settings={**_trial(ranks, 1, "cuda").settings, "pin_cores": "yes", **settings})
    return [
        cpus_for(trial, rank, gpus, lambda bus: None if bus is None else SOCKETS.get(bus))
        for rank in range(ranks)
    ]


@pytest.mark.usefixtures("cores")
def test_a_rank_is_pinned_next_to_its_own_gpu() -> None:
    assert _pinned(2, _gpus("b", "a")) == [[7, 8, 9], [4, 5, 6]]
    assert _pinned(2, _gpus("b", "b")) == [[7], [8]]
    assert _pinned(1, _gpus("b", "a")) == [[7, 8, 9]]


@pytest.mark.usefixtures("cores")
def test_the_parts_of_a_split_gpu_share_the_cores_next_to_it() -> None:
    assert _pinned(3, _gpus("b", "a"), split_gpu=3) == [[7], [8], [9]]


@pytest.mark.usefixtures("cores")
def test_without_a_topology_gpu_ranks_share_all_cores() -> None:
    assert _pinned(2, _gpus("b", "unknown")) == [[4, 5, 6], [7, 8, 9]]
    assert _pinned(2, []) == [[4, 5, 6], [7, 8, 9]]


class _Daemon:
    """Stands for the MPS daemon: it is ready at once, and ends when it is told to."""

    def __init__(self, _: object, *, env: dict[str, str], **__: Any) -> None:
        self.environment = env
        (Path(env["CUDA_MPS_PIPE_DIRECTORY"]) / "control").touch()

    def poll(self) -> None:
        return None

    def wait(self, timeout: float | None = None) -> int:
        return 0


@pytest.fixture
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(emulation.shutil, "which", lambda _: "/usr/bin/nvidia-cuda-mps-control")
    monkeypatch.setattr(emulation.subprocess, "Popen", _Daemon)
    monkeypatch.setattr(emulation.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0))
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    yield


@pytest.mark.usefixtures("without_a_gpu")
def test_ranks_share_the_connections_of_the_gpu_unless_the_user_has_set_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for parts, connections in ((2, "32"), (4, "16"), (100, "1")):
        gpu = SplitGpu(parts)
        assert gpu.environment_of(1)["CUDA_DEVICE_MAX_CONNECTIONS"] == connections
        gpu.close()
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "5")
    gpu = SplitGpu(4)
    assert gpu.environment_of(0)["CUDA_DEVICE_MAX_CONNECTIONS"] == "5"
    gpu.close()


GPUS = [("GPU-a", "H100", 80 << 30), ("GPU-b", "L4", 24 << 30)]


def with_gpu_files(root: Path) -> Path:
    (root / "dev").mkdir()
    (root / "dev/nvidia0").touch()
    return root


def test_without_gpu_files_ranks_run_on_the_cpu(tmp_path: Path) -> None:
    machine = outlook(["auto"], tmp_path)
    assert machine is not None
    assert (machine.gpus, machine.backends) == ((), ("gloo",))
    assert machine.cores >= 1


@pytest.mark.parametrize("name", ["nvidiactl", "nvhost-gpu", "nvmap", "kfd", "dxg"])
def test_any_sign_of_a_gpu_leaves_the_device_to_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(module, "gpu_totals", lambda: None)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / name).touch()
    assert outlook(["auto"], tmp_path) is None


def test_gpus_are_those_of_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(module, "gpu_totals", lambda: GPUS)
    machine = outlook(["auto"], with_gpu_files(tmp_path))
    assert machine is not None
    assert [gpu.memory_bytes for gpu in machine.gpus] == [80 << 30, 24 << 30]
    assert "nccl" in machine.backends


def test_gpus_without_nvml_are_unknown_unless_the_cpu_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "gpu_totals", lambda: None)
    root = with_gpu_files(tmp_path)
    assert outlook(["auto"], root) is None
    assert outlook(["cpu", "cuda"], root) is None
    assert outlook(["cpu"], root) is not None


def test_what_visible_devices_leave_is_at_most_this() -> None:
    chosen = visible_gpus(GPUS, {"CUDA_VISIBLE_DEVICES": "1"})
    assert chosen is not None
    assert [gpu.memory_bytes for gpu in chosen] == [80 << 30]  # CUDA may number them otherwise


@pytest.mark.parametrize("chosen", ["", "-1", "GPU-a", "MIG-1", "0,7"])
def test_what_cannot_be_said_of_visible_devices_is_unknown(chosen: str) -> None:
    assert visible_gpus(GPUS, {"CUDA_VISIBLE_DEVICES": chosen}) is None
