"""Exchanges that take turns, and exchanges that share a link."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.analysis.prediction.network import CollectiveTime
from scalescope.analysis.prediction.timelines.exchanges import Exchange, Sent, scheduled


def exchange(ready_s: float, time_s: float, latency_s: float = 0.0) -> Exchange:
    return Exchange("all_reduce", 1, ready_s, CollectiveTime(time_s=time_s, latency_s=latency_s))


def spans(sent: tuple[Sent, ...]) -> list[tuple[float, float]]:
    return [(item.begin_s, item.end_s) for item in sent]


def test_nccl_runs_one_at_a_time() -> None:
    assert spans(scheduled([exchange(0, 2), exchange(1, 2), exchange(9, 1)], "nccl")) == [
        (0, 2),
        (2, 4),
        (9, 10),
    ]


def test_two_of_gloo_take_as_long_together() -> None:
    assert spans(scheduled([exchange(0, 2), exchange(0, 2)], "gloo")) == [(0, 4), (0, 4)]


def test_the_rest_runs_alone_again() -> None:
    assert spans(scheduled([exchange(0, 4), exchange(0, 1), exchange(0, 1)], "gloo")) == [
        (0, 6),
        (0, 2),
        (2, 4),
    ]


def test_latencies_pass_side_by_side() -> None:
    assert spans(scheduled([exchange(0, 2, latency_s=2), exchange(0, 2, latency_s=2)], "gloo")) == [
        (0, 2),
        (0, 2),
    ]


def test_nothing_takes_no_time() -> None:
    assert scheduled([], "gloo") == ()
    assert spans(scheduled([exchange(1, 0)], "gloo")) == [(1, 1)]


parts = st.lists(
    st.tuples(st.floats(0, 10), st.floats(0, 5), st.floats(0, 5)).map(
        lambda part: exchange(part[0], part[1] + part[2], latency_s=part[1])
    ),
    min_size=1,
    max_size=30,
).map(lambda items: sorted(items, key=lambda item: item.ready_s))


@given(parts)
def test_sharing_is_never_slower_than_turns_nor_faster_than_the_link(exchanges: list[Exchange]) -> None:
    turns, shared = scheduled(exchanges, "nccl"), scheduled(exchanges, "gloo")
    assert max(item.end_s for item in shared) <= max(item.end_s for item in turns) + 1e-6
    transfer_s = sum(item.time.time_s - item.time.latency_s for item in exchanges)
    assert max(item.end_s for item in shared) >= exchanges[0].ready_s + transfer_s - 1e-6
    for item in (*turns, *shared):
        assert item.begin_s >= item.exchange.ready_s
        assert item.end_s >= item.begin_s + item.exchange.time.time_s - 1e-6


@given(parts)
def test_without_latency_the_last_ends_when_it_would_in_turn(exchanges: list[Exchange]) -> None:
    busy = [
        dataclasses.replace(item, time=dataclasses.replace(item.time, latency_s=0.0)) for item in exchanges
    ]
    turns, shared = scheduled(busy, "nccl"), scheduled(busy, "gloo")
    assert max(item.end_s for item in shared) == pytest.approx(max(item.end_s for item in turns))
