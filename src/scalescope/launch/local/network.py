"""Shaped network: every rank in a network namespace of its own, joined by a bridge, at a rate we set.

The namespaces are anonymous: each is held by a process bound to our life, so nothing can be left behind, and
nothing of the host's own network is touched.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from scalescope.errors import CannotRun
from scalescope.interpreter import python_module

_TOOLS = ("ip", "tc", "nsenter", "unshare")
_LIMIT_S = 10.0
# A whole segmentation-offload packet with the headers of its 45 segments; with less, the CPU cuts each up.
_LEAST_BURST_BYTES = 80 << 10
_BURST_S = 0.25e-3
_QUEUE = "50ms"


class ShapedNetwork:
    """`rates` are bits per second, one for each rank, in both directions."""

    def __init__(self, rates: list[float]) -> None:
        check_possible()
        self._holders: list[subprocess.Popen[bytes]] = []
        try:
            self._build(rates)
        except BaseException:
            self.close()
            raise

    def namespace_of(self, rank: int) -> str:
        """The file through which a rank enters its namespace."""
        return f"/proc/{self._holders[rank + 1].pid}/ns/net"

    def environment_of(self, rank: int) -> dict[str, str]:
        return {"GLOO_SOCKET_IFNAME": f"v{rank}", "NCCL_SOCKET_IFNAME": f"v{rank}"}

    def _build(self, rates: list[float]) -> None:
        self._holders += [_hold_namespace() for _ in range(len(rates) + 1)]
        for holder in self._holders:
            _wait_until_apart(holder)
        bridge = self._holders[0].pid
        pairs = [
            f"link add v{rank} netns {holder.pid} type veth peer name b{rank} netns {bridge}"
            for rank, holder in enumerate(self._holders[1:])
        ]
        _run(["ip", "-batch", "-"], pairs)
        ports = [f"link set b{rank} master bridge0 up" for rank in range(len(rates))]
        _inside(bridge, "ip", ["link add bridge0 type bridge", "link set bridge0 up", *ports])
        _inside(bridge, "tc", [_shape(f"b{rank}", rate) for rank, rate in enumerate(rates)])
        for rank, rate in enumerate(rates):
            pid = self._holders[rank + 1].pid
            address = f"10.77.{(rank + 1) // 256}.{(rank + 1) % 256}/16"
            up = ["link set lo up", f"addr add {address} dev v{rank}", f"link set v{rank} up"]
            _inside(pid, "ip", up)
            _inside(pid, "tc", [_shape(f"v{rank}", rate)])

    def close(self) -> None:
        """End the holders; the namespaces and all links go with them."""
        for holder in self._holders:
            with contextlib.suppress(ProcessLookupError):
                holder.kill()
        for holder in self._holders:
            holder.wait()
        self._holders.clear()


def check_possible() -> None:
    """Refuse where no network can be shaped."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise CannotRun("--link requires Linux and root, because it creates network namespaces")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise CannotRun(f"--link requires {', '.join(missing)} (packages iproute2 and util-linux)")


def _hold_namespace() -> "subprocess.Popen[bytes]":
    command = ["unshare", "--net", "sleep", "infinity"]
    return subprocess.Popen(
        python_module("scalescope.parent_death", str(os.getpid()), *command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _wait_until_apart(holder: "subprocess.Popen[bytes]") -> None:
    host_namespace = Path("/proc/self/ns/net").readlink()
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline and holder.poll() is None:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{holder.pid}/ns/net").readlink() != host_namespace:
                return
        time.sleep(0.01)
    raise CannotRun("--link: this system does not allow network namespaces to be created")


def _shape(interface: str, rate: float) -> str:
    burst = max(_LEAST_BURST_BYTES, int(rate / 8 * _BURST_S))
    return f"qdisc add dev {interface} root tbf rate {rate:.0f}bit burst {burst}b latency {_QUEUE}"


def _inside(pid: int, tool: str, lines: list[str]) -> None:
    _run(["nsenter", f"--net=/proc/{pid}/ns/net", tool, "-batch", "-"], lines)


def _run(command: list[str], lines: list[str]) -> None:
    text = "\n".join(lines) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=30)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[0]
        raise CannotRun(f"--link: {command[-3]} failed: {reason}")
