"""The timeline of ZeRO-1."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.analysis.prediction.setup import Setup
from scalescope.analysis.prediction.timeline import Fitted
from scalescope.analysis.prediction.timelines.data_parallel import simulate_data_parallel
from scalescope.analysis.prediction.timelines.zero1 import largest_share, simulate_zero1
from tests.builders.profiles import MIB, PerMib, profile_of, unit

PROFILE = profile_of(*[unit("block", 1.0, 2.0)] * 4, optimizer_s=2.0)
SETUP = Setup(world_size=2, strategy="zero1", bucket_cap_mb=1)


def test_half_of_the_update_and_then_all_parameters() -> None:
    line = simulate_zero1(PROFILE, PerMib(0.5), SETUP, Fitted())
    plain = simulate_data_parallel(PROFILE, PerMib(0.5), SETUP, Fitted())
    assert line.step_s == pytest.approx(plain.step_s - 1.0 + 4 * 0.5)
    assert [event.name for event in line.events if event.begin_s >= plain.step_s - 2.0] == [
        "optimizer",
        *["broadcast"] * 4,
    ]
    assert line.exposed_s == pytest.approx(plain.exposed_s + 4 * 0.5)


def test_parameters_are_sent_whole_though_gradients_were_halved() -> None:
    line = simulate_zero1(PROFILE, PerMib(0.5), dataclasses.replace(SETUP, comm_hook="bf16"), Fitted())
    sizes = {event.name: event.size_bytes for event in line.events if event.lane == "communication"}
    assert sizes == {"all_reduce": MIB // 2, "broadcast": MIB}


@pytest.mark.parametrize(
    ("sizes", "ranks", "share"),
    [([4, 3, 2, 1], 2, 0.5), ([9, 1], 2, 0.9), ([9, 1], 8, 0.9), ([], 4, 0.25), ([2, 2, 2], 2, 4 / 6)],
)
def test_the_busiest_rank(sizes: list[int], ranks: int, share: float) -> None:
    assert largest_share(sizes, ranks) == pytest.approx(share)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=50), st.integers(1, 20))
def test_no_rank_has_less_than_its_share(sizes: list[int], ranks: int) -> None:
    assert 1 / ranks - 1e-9 <= largest_share(sizes, ranks) <= 1.0
