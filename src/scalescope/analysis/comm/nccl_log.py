"""Reads NCCL's own INFO log: which transport, algorithm, protocol and channels it really chose."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from scalescope.results.result import Result
from scalescope.results.run import Run

_TRANSPORT = re.compile(r"\bvia ([A-Z0-9]+(?:/[A-Za-z0-9]+)*)")
_NETWORK = re.compile(r"Using network (\S.*?)\s*$")  # a plugin's name may hold blanks
_CHANNELS = re.compile(r"(\d+) coll channels")
_CHOICE = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)")
_NVLS = re.compile(r"NVLS multicast support is (available|not available)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclChoices:
    """What NCCL logged that it uses; empty where it logged nothing."""

    transports: tuple[str, ...]
    network: str | None
    channels: int | None
    algorithms: tuple[str, ...]
    nvls: bool | None

    @property
    def uses_sockets(self) -> bool:
        return any(transport.startswith("NET/Socket") for transport in self.transports)


def read_choices(lines: Iterable[str]) -> NcclChoices:
    """Collect from the INFO lines of one or more ranks."""
    transports: dict[str, None] = {}
    algorithms: dict[str, None] = {}
    network, channels, nvls = None, None, None
    for line in lines:
        if "NCCL INFO" not in line:
            continue
        if match := _TRANSPORT.search(line):
            transports[re.sub(r"/\d+(?=/|$)", "", match[1])] = None  # without the number of the NIC
        if match := _NETWORK.search(line):
            network = match[1]
        if match := _CHANNELS.search(line):
            channels = int(match[1])
        if match := _CHOICE.search(line):
            algorithms[f"{match[1]} {match[3]}/{match[4]}"] = None
        if match := _NVLS.search(line):
            nvls = match[1] == "available"
    return NcclChoices(
        transports=tuple(transports),
        network=network,
        channels=channels,
        algorithms=tuple(algorithms),
        nvls=nvls,
    )


def nccl_choices(run: Run, result: Result) -> NcclChoices:
    """What NCCL chose, from the ranks' logs of an untimed launch."""
    logs = sorted((run.path / "logs").glob(f"{result.trial_id}-{result.launch}-*.log"))
    return read_choices(line for log in logs for line in log.read_text(errors="replace").splitlines())
