"""Keeps the traffic of ranks that are all on this machine on it."""

import sys

_NAME = "lo" if sys.platform == "linux" else "lo0"
LOOPBACK = {"GLOO_SOCKET_IFNAME": _NAME, "NCCL_SOCKET_IFNAME": _NAME}
