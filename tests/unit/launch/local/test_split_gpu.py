"""What ranks that share a GPU are told."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scalescope.launch.local import split_gpu
from scalescope.launch.local.split_gpu import SplitGpu


class _Daemon:
    """Stands for the MPS daemon: it is ready at once, and ends when it is told to."""

    def __init__(self, _: object, *, env: dict[str, str], **__: Any) -> None:
        self.environment = env
        (Path(env["CUDA_MPS_PIPE_DIRECTORY"]) / "control").touch()

    def poll(self) -> None:
        return None

    def wait(self, timeout: float | None = None) -> int:
        return 0


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(split_gpu.shutil, "which", lambda _: "/usr/bin/nvidia-cuda-mps-control")
    monkeypatch.setattr(split_gpu.subprocess, "Popen", _Daemon)
    monkeypatch.setattr(split_gpu.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0))
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    yield


@pytest.mark.parametrize(("parts", "connections"), [(2, "32"), (4, "16"), (48, "1"), (100, "1")])
def test_ranks_share_the_connections_of_the_gpu(parts: int, connections: str) -> None:
    gpu = SplitGpu(parts)
    assert gpu.environment_of(1)["CUDA_DEVICE_MAX_CONNECTIONS"] == connections
    gpu.close()


def test_a_number_that_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "5")
    gpu = SplitGpu(4)
    assert gpu.environment_of(0)["CUDA_DEVICE_MAX_CONNECTIONS"] == "5"
    gpu.close()
