"""SLURM's short forms written out: lists of hosts and counts for each node."""

import re
from collections.abc import Iterator

from scalescope.catalog.setting import shown
from scalescope.errors import BadInput

_MOST_HOSTS = 100_000  # a typo such as n[1-999999999] must not fill the memory
_HOST = re.compile(r"[A-Za-z0-9_.-]+(\[[0-9,-]+\][A-Za-z0-9_.-]*)*|(\[[0-9,-]+\][A-Za-z0-9_.-]*)+")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")


def hosts_of(text: str) -> list[str]:
    """`n[1-3,7],gpu-a` as n1, n2, n3, n7, gpu-a; numbers keep their leading zeros."""
    hosts: list[str] = []
    for piece in _pieces(text):
        if not _HOST.fullmatch(piece):
            raise BadInput(f"{shown(text)} is not a list of hosts such as n[1-3,7],gpu-a")
        for host in _expanded(piece, text):
            hosts.append(host)
            if len(hosts) > _MOST_HOSTS:
                raise BadInput(f"{shown(text)} names more than {_MOST_HOSTS:,} hosts")
    return hosts


def counts_of(text: str) -> list[int]:
    """`4(x2),1` as 4, 4, 1: one number for each node."""
    counts: list[int] = []
    for piece in text.split(","):
        match = _COUNT.fullmatch(piece)
        times = int(match[2] or 1) if match else 0
        if match is None or len(counts) + times > _MOST_HOSTS:
            raise BadInput(f"{shown(text)} is not a list of counts such as 4(x2),1")
        counts += [int(match[1])] * times
    return counts


def _pieces(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    return re.split(r",(?![^\[\]]*\])", text)


def _expanded(piece: str, text: str) -> Iterator[str]:
    before, opening, rest = piece.partition("[")
    if not opening:
        yield piece
        return
    inside, _, after = rest.partition("]")
    for number in _numbers(inside, text):
        for ending in _expanded(after, text) if after else ("",):
            yield before + number + ending


def _numbers(inside: str, text: str) -> Iterator[str]:
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or last < first:
            raise BadInput(f"{shown(text)}: [{inside}] is not a list of numbers such as [1-3,7]")
        for number in range(first, last + 1):
            yield str(number).zfill(len(match[1]))
