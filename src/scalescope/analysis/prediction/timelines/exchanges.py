"""Exchanges: when transfers that wait for each other, or share a link, begin and end."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.prediction.network import CollectiveTime, CollectiveTimes
from scalescope.analysis.prediction.setup import Setup

_AT_ONCE = {"gloo": 2}  # exchanges that a backend runs side by side; NCCL runs one
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective that can begin once its data is ready."""

    name: str
    size_bytes: int
    ready_s: float
    time: CollectiveTime


@dataclass(frozen=True, slots=True)
class Sent:
    """An exchange with its begin and end."""

    exchange: Exchange
    begin_s: float
    end_s: float


class SetupCollectives:
    """The times of collectives among all ranks of a setup."""

    def __init__(self, times: CollectiveTimes, setup: Setup) -> None:
        self._times = times
        self._setup = setup

    def exchange(self, name: str, size_bytes: float, ready_s: float = 0.0) -> Exchange:
        size = int(size_bytes)
        time = self._times.time_of(name, size, self._setup.world_size, self._setup.layout)
        return Exchange(name, size, ready_s, time)


def scheduled(exchanges: Sequence[Exchange], backend: str) -> tuple[Sent, ...]:
    """Exchanges in their order; those that run side by side share the link, but not their latency."""
    return _shared(exchanges, _AT_ONCE[backend]) if backend in _AT_ONCE else _in_turn(exchanges)


def _in_turn(exchanges: Sequence[Exchange]) -> tuple[Sent, ...]:
    sent: list[Sent] = []
    free_s = 0.0
    for exchange in exchanges:
        begin_s = max(exchange.ready_s, free_s)
        free_s = begin_s + exchange.time.time_s
        sent.append(Sent(exchange, begin_s, free_s))
    return tuple(sent)


@dataclass(slots=True)
class _Running:
    number: int
    begin_s: float
    latency_s: float  # that is left
    transfer_s: float  # that is left, at the whole rate of the link


def _shared(exchanges: Sequence[Exchange], at_once: int) -> tuple[Sent, ...]:
    sent: dict[int, Sent] = {}
    running: list[_Running] = []
    now_s, next_number = 0.0, 0
    while len(sent) < len(exchanges):
        while next_number < len(exchanges) and len(running) < at_once:
            exchange = exchanges[next_number]
            if exchange.ready_s > now_s:
                break
            latency_s = min(exchange.time.latency_s, exchange.time.time_s)
            running.append(_Running(next_number, now_s, latency_s, exchange.time.time_s - latency_s))
            next_number += 1
        may_begin = next_number < len(exchanges) and len(running) < at_once
        begins_s = exchanges[next_number].ready_s - now_s if may_begin else _NEVER
        passed_s = min([begins_s, *_until_change(running)])
        _advance(running, passed_s)
        now_s += passed_s
        for item in [item for item in running if item.latency_s <= 0.0 and item.transfer_s <= 0.0]:
            running.remove(item)
            sent[item.number] = Sent(exchanges[item.number], item.begin_s, now_s)
    return tuple(sent[number] for number in range(len(exchanges)))


def _until_change(running: Sequence[_Running]) -> list[float]:
    transferring = sum(item.latency_s <= 0.0 for item in running)
    return [item.latency_s if item.latency_s > 0.0 else item.transfer_s * transferring for item in running]


def _advance(running: Sequence[_Running], passed_s: float) -> None:
    transferring = sum(item.latency_s <= 0.0 for item in running)
    for item, left_s in zip(running, _until_change(running), strict=True):
        ends = left_s <= passed_s  # exactly, whatever rounding a subtraction leaves
        if item.latency_s > 0.0:
            item.latency_s = 0.0 if ends else item.latency_s - passed_s
        else:
            item.transfer_s = 0.0 if ends else item.transfer_s - passed_s / transferring
