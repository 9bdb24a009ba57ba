"""Split GPU: a private CUDA MPS daemon that gives every rank its share of one GPU's multiprocessors."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from scalescope.errors import CannotRun
from scalescope.interpreter import python_module
from scalescope.launch.private_directory import private_directory

_PROGRAM = "nvidia-cuda-mps-control"
_LIMIT_S = 20.0
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
# Of all ranks together: with fewer, a kernel that waits for an exchange holds up kernels of other streams (a
# step with bf16 gradients took 51 ms and not 45); with 128, four ranks on an H200 ran out of memory.
_ALL_CONNECTIONS = 64


class SplitGpu:
    """The daemon runs in the foreground as our child and is stopped with us."""

    def __init__(self, parts: int) -> None:
        if shutil.which(_PROGRAM) is None:
            raise CannotRun(f"--split-gpu requires {_PROGRAM}, which comes with the NVIDIA driver")
        self._parts = parts
        self._directory_context = private_directory(Path(tempfile.gettempdir()))
        self._directory = self._directory_context.__enter__()
        self._gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        (self._directory / "pipe").mkdir()
        (self._directory / "log").mkdir()
        self._process = subprocess.Popen(
            python_module("scalescope.parent_death", str(os.getpid()), _PROGRAM, "-f"),
            env={**os.environ, **self._mps_variables(), "CUDA_VISIBLE_DEVICES": self._gpu},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def _mps_variables(self) -> dict[str, str]:
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._directory / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._directory / "log"),
            _CONNECTIONS: os.environ.get(_CONNECTIONS, str(max(1, _ALL_CONNECTIONS // self._parts))),
        }

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if (self._directory / "pipe" / "control").exists():
                return
            time.sleep(0.05)
        raise CannotRun(
            f"--split-gpu: {_PROGRAM} did not start; check that no other MPS daemon uses this GPU"
        )

    def environment_of(self, rank: int) -> dict[str, str]:
        """What makes a rank a client with its share, and NCCL believe it is alone on its host."""
        return {
            **self._mps_variables(),
            "CUDA_VISIBLE_DEVICES": "0",  # the only one the daemon offers
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{100 / self._parts:g}",
            "NCCL_HOSTID": f"scalescope-{rank}",
            "NCCL_IB_DISABLE": "1",
        }

    def close(self) -> None:
        """Ask the daemon to quit, which ends its server as well; insist after a few seconds."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                [_PROGRAM],
                input="quit -t 2\n",
                text=True,
                env={**os.environ, **self._mps_variables()},
                capture_output=True,
                timeout=8,
            )
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._directory_context.__exit__(None, None, None)
