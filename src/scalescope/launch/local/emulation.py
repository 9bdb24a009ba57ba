"""Links that are slowed and GPUs that are split, for ranks on one machine."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scalescope.errors import CannotRun
from scalescope.interpreter import python_module
from scalescope.launch.private_directory import private_directory
from scalescope.results.printable import printable

# ---- Shaped network: every rank in a network namespace of its own, joined by a bridge, at a rate we set


_TOOLS = ("ip", "tc", "nsenter", "unshare")
_LIMIT_S = 5.0
_ATTEMPTS = 2  # to build a network: a process that makes a namespace may be killed meanwhile
# A whole segmentation-offload packet with the headers of its 45 segments; with less, the CPU cuts each up.
_LEAST_BURST_BYTES = 80 << 10
_BURST_S = 0.25e-3
_QUEUE = "50ms"


class ShapedNetwork:
    """`rates` are bits per second, one for each rank, in both directions."""

    def __init__(self, rates: list[float]) -> None:
        check_possible()
        self._namespaces: list[int] = []  # open files: of the bridge, then of each rank
        for attempt in range(1, _ATTEMPTS + 1):
            makers: list[_Maker] = []
            try:
                self._build(rates, makers)
                return
            except BaseException as error:
                self.close()
                was_killed = isinstance(error, CannotRun) and any(maker.was_killed() for maker in makers)
                if not was_killed or attempt == _ATTEMPTS:
                    raise
            finally:
                for maker in makers:
                    maker.end()

    def namespace_of(self, rank: int) -> str:
        """The file through which a rank enters its namespace."""
        return f"/proc/{os.getpid()}/fd/{self._namespaces[rank + 1]}"

    def environment_of(self, rank: int) -> dict[str, str]:
        return {"GLOO_SOCKET_IFNAME": f"v{rank}", "NCCL_SOCKET_IFNAME": f"v{rank}"}

    def _build(self, rates: list[float], makers: "list[_Maker]") -> None:
        makers += [_Maker() for _ in range(len(rates) + 1)]
        self._namespaces += [maker.open_namespace() for maker in makers]
        bridge = makers[0].pid
        pairs = [
            f"link add v{rank} netns {maker.pid} type veth peer name b{rank} netns {bridge}"
            for rank, maker in enumerate(makers[1:])
        ]
        _run(["ip", "-batch", "-"], pairs)
        ports = [f"link set b{rank} master bridge0 up" for rank in range(len(rates))]
        _inside(bridge, "ip", ["link add bridge0 type bridge", "link set bridge0 up", *ports])
        _inside(bridge, "tc", [_shape(f"b{rank}", rate) for rank, rate in enumerate(rates)])
        for rank, rate in enumerate(rates):
            pid = makers[rank + 1].pid
            address = f"10.77.{(rank + 1) // 256}.{(rank + 1) % 256}/16"
            up = ["link set lo up", f"addr add {address} dev v{rank}", f"link set v{rank} up"]
            _inside(pid, "ip", up)
            _inside(pid, "tc", [_shape(f"v{rank}", rate)])

    def close(self) -> None:
        """Let the namespaces go, and all links with them."""
        for namespace in self._namespaces:
            os.close(namespace)
        self._namespaces.clear()


def check_possible() -> None:
    """Refuse where no network can be shaped."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise CannotRun("--link requires Linux and root, because it creates network namespaces")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise CannotRun(f"--link requires {', '.join(missing)} (packages iproute2 and util-linux)")


class _Maker:
    """A process in a network namespace of its own, for the time in which the network is built."""

    def __init__(self) -> None:
        command = ["unshare", "--net", "sleep", "infinity"]
        self._process = subprocess.Popen(
            python_module("scalescope.parent_death", str(os.getpid()), *command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def open_namespace(self) -> int:
        """Wait for the namespace; the open file keeps it when this process is gone."""
        host_namespace = Path("/proc/self/ns/net").readlink()
        deadline = time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{self.pid}/ns/net").readlink() != host_namespace:
                    return os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY)
            time.sleep(0.01)
        raise CannotRun("--link: this system does not allow network namespaces to be created")

    def was_killed(self) -> bool:
        """Whether a signal ended it: then the system does allow namespaces."""
        code = self._process.poll()
        return code is not None and code < 0

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def _shape(interface: str, rate: float) -> str:
    burst = max(_LEAST_BURST_BYTES, int(rate / 8 * _BURST_S))
    return f"qdisc add dev {interface} root tbf rate {rate:.0f}bit burst {burst}b latency {_QUEUE}"


def _inside(pid: int, tool: str, lines: list[str]) -> None:
    _run(["nsenter", f"--net=/proc/{pid}/ns/net", tool, "-batch", "-"], lines)


def _run(command: list[str], lines: list[str]) -> None:
    """Run a tool on a batch of lines; one that hangs is ended with all that it started."""
    tool, pipe = command[-3], subprocess.PIPE
    try:
        process = subprocess.Popen(
            command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, start_new_session=True
        )
    except OSError as error:
        raise CannotRun(f"--link: {tool} could not be started: {error.strerror}") from None
    with process:
        try:
            _, errors = process.communicate(("\n".join(lines) + "\n").encode(), timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise CannotRun(f"--link: {tool} did not finish within {_LIMIT_S:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        messages = errors.decode(errors="replace").strip().splitlines() or ["no message"]
        raise CannotRun(f"--link: {tool} failed: {printable(messages[0])}")


# ---- Split GPU: a private CUDA MPS daemon that gives every rank its share of one GPU's multiprocessors


_PROGRAM = "nvidia-cuda-mps-control"
_SPLIT_GPU_LIMIT_S = 20.0
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
        deadline = time.monotonic() + _SPLIT_GPU_LIMIT_S
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
