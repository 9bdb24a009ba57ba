"""Error counters of InfiniBand and RoCE ports, as the kernel counts them since a port came up."""

from collections.abc import Mapping
from pathlib import Path

SYS = Path("/sys")
Counters = Mapping[str, Mapping[str, int]]  # of each port, such as mlx5_0/1
# Counters of errors and losses. Bytes, packets and waiting (port_xmit_wait) are not errors.
_COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_constraint_errors",
    "port_xmit_constraint_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
_HARDWARE_COUNTERS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
    "out_of_buffer",
    "rx_icrc_encapsulated",
    "req_cqe_error",
    "resp_cqe_error",
)


def read_counters(sys: Path = SYS) -> dict[str, dict[str, int]]:
    """The error counters of every port; a port that shows none is left out."""
    ports = {}
    for port in sorted((sys / "class/infiniband").glob("*/ports/*")):
        paths = [port / "counters" / name for name in _COUNTERS]
        paths += [port / "hw_counters" / name for name in _HARDWARE_COUNTERS]
        values = {path.name: value for path in paths if (value := _number(path)) is not None}
        if values:
            ports[f"{port.parent.parent.name}/{port.name}"] = values
    return ports


def growth(before: Counters, after: Counters) -> dict[str, dict[str, int]]:
    """By how much the counters of each port grew; empty for a port without errors.

    A port that was read only once is left out, and a counter that fell was reset meanwhile.
    """
    return {
        port: {
            name: value - before[port][name]
            for name, value in values.items()
            if value > before[port].get(name, value)
        }
        for port, values in after.items()
        if port in before
    }


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
