"""What our processes listen at while they measure: nothing that another host could reach."""

import contextlib
import ipaddress
import re
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.faults.conftest import Seen
from tests.gloo.conftest import Start
from tests.gloo.real_runs import StartedRun

pytestmark = pytest.mark.gloo

_LISTENING = "0A"
_FLAGS = (
    "train",
    *(flag for flag in TINY if "steps-per-epoch" not in flag),
    "--window=0.5s",
    "--world-size=2",
)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address as the kernel writes it: words of four bytes in the order of this machine."""
    words = [int(word, 16) for word in re.findall(".{8}", text.partition(":")[0])]
    packed = b"".join(word.to_bytes(4, "little") for word in words)
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _sockets_of(pids: Iterable[int | str]) -> set[str]:
    """The inodes of the sockets that processes have open."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes |= set(re.findall(r"socket:\[(\d+)\]", str(link.readlink())))
    return inodes


def _listening(pids: Iterable[int | str]) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The addresses that processes listen at now."""
    inodes = _sockets_of(pids)
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and fields[9] in inodes:
                    yield _address(fields[1])


def _addresses_of(runs: Sequence[StartedRun]) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Everything that runs listened at, from their start to their end."""
    addresses = set()
    while pids := [pid for run in runs for pid in run.processes()]:
        addresses |= set(_listening(pids))
        time.sleep(0.3)
    assert [run.finish().returncode for run in runs] == [0] * len(runs)
    return addresses


def test_the_reader_of_sockets_sees_what_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)):
        assert "127.0.0.1" in {str(address) for address in _listening(["self"])}
    assert not _address("00000000:1F90").is_loopback  # all addresses of this machine
    assert not _address(f"{'0' * 32}:1F90").is_loopback


@pytest.mark.fault(50)
def test_ranks_of_this_machine_listen_at_the_loopback(start: Start, seen: Seen) -> None:
    addresses = _addresses_of([start(*_FLAGS)])
    assert all(address.is_loopback for address in addresses), addresses
    seen(f"2 ranks on one machine: {', '.join(sorted(map(str, addresses))) or 'none'}")


@pytest.mark.fault(50)
def test_attached_ranks_that_meet_at_the_loopback_listen_nowhere_else(start: Start, seen: Seen) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    runs = [start(*_FLAGS, RANK=rank, LOCAL_RANK=rank, **meeting) for rank in ("0", "1")]
    addresses = _addresses_of(runs)
    assert addresses, "the store of the ranks was not seen"
    assert all(address.is_loopback for address in addresses), addresses
    seen(f"2 attached ranks with MASTER_ADDR=127.0.0.1: {', '.join(sorted(map(str, addresses)))}")
