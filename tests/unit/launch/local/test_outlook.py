"""What is known before torch is loaded: a device that only torch knows leaves the machine unknown."""

from pathlib import Path

import pytest

from scalescope.launch.local import outlook as module
from scalescope.launch.local.outlook import outlook, visible_gpus

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


@pytest.mark.parametrize("name", ["nvidia0", "nvidiactl", "nvhost-gpu", "nvmap", "kfd", "dxg"])
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
