"""Times of collectives on named hardware."""

import pytest

from scalescope.analysis.prediction.hardware_times import TwoLevelTimes, network_named
from scalescope.analysis.prediction.network import CollectiveTime
from scalescope.analysis.prediction.setup import RankLayout
from scalescope.errors import BadInput

MIB = 1 << 20
ONE_NODE = RankLayout()
EIGHT_PER_NODE = RankLayout(ranks_per_node=8, cards_per_node=8)


class Second:
    """A second, whatever is asked; remembers on how many ranks."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def time_of(self, collective: str, size_bytes: float, ranks: int, layout: RankLayout) -> CollectiveTime:
        self.asked.append(ranks)
        return CollectiveTime(time_s=1.0, latency_s=0.5, error=0.02)


def test_published_curves_are_used_where_there_are_any() -> None:
    time = network_named("nvlink4").time_of("all_reduce", 64 * MIB, 8, ONE_NODE)
    assert time.time_s == pytest.approx(338.92e-6)
    assert time.error == pytest.approx(0.1)
    assert "H200" in time.assumptions[0]
    layout = RankLayout(ranks_per_node=8)
    time = network_named("nvlink4+efa3200").time_of("all_reduce", 64 * MIB, 16, layout)
    assert time.time_s == pytest.approx(601.5e-6)


def test_latency_and_pcie_are_less_certain() -> None:
    nvlink, pcie = (
        network_named(name).time_of("all_reduce", 1024 * MIB, 2, ONE_NODE) for name in ("nvlink3", "pcie3")
    )
    assert pcie.error > 2 * nvlink.error
    times = network_named("nvlink4+400gbe")
    small = times.time_of("all_reduce", 1024, 64, EIGHT_PER_NODE)
    large = times.time_of("all_reduce", 1024 * MIB, 64, EIGHT_PER_NODE)
    assert small.error > 0.9 > 0.4 > large.error


@pytest.mark.parametrize(("collective", "ranks"), [("all_reduce", 4), ("all_gather", 8)])
def test_elsewhere_nominal_rates_are_assumed(collective: str, ranks: int) -> None:
    time = network_named("nvlink4").time_of(collective, 1024 * MIB, ranks, ONE_NODE)
    assert time.error == pytest.approx(0.2, abs=0.05)
    assert "nvlink4" in time.assumptions[0]


@pytest.mark.parametrize(
    ("name", "layout", "assumption"),
    [
        ("nvlink4", EIGHT_PER_NODE, "nodes are connected as fast as the GPUs"),
        ("400gbe", EIGHT_PER_NODE, "GPUs of one node are connected at least as fast"),
        ("400gbe", ONE_NODE, "every rank has a network card"),
    ],
)
def test_a_missing_level_is_an_assumption(name: str, layout: RankLayout, assumption: str) -> None:
    time = network_named(name).time_of("all_reduce", MIB, 16, layout)
    assert assumption in time.assumptions[-1]


def test_one_rank_exchanges_nothing_and_one_per_node_needs_no_inside() -> None:
    time = network_named("400gbe").time_of("all_reduce", MIB, 16, RankLayout(ranks_per_node=1))
    assert len(time.assumptions) == 1
    assert network_named("nvlink4").time_of("all_reduce", MIB, 1, ONE_NODE).time_s == 0.0


def test_unknown_networks_are_refused_with_the_known_ones() -> None:
    for text in ("nvlink9", "", "nvlink4+nvlink5", "nvlink4+400gbe+ndr"):
        with pytest.raises(BadInput, match=r"nvlink4, .*400gbe"):
            network_named(text)
    assert network_named("NVLink4 + 400GbE") == network_named("nvlink4+400gbe")


def test_measured_inside_and_named_between_add_up() -> None:
    measured, named = Second(), network_named("400gbe")
    time = TwoLevelTimes(measured, named).time_of("all_reduce", MIB, 32, EIGHT_PER_NODE)
    apart = RankLayout(ranks_per_node=1, cards_per_node=8)
    outside = named.time_of("all_reduce", MIB, 4, apart)
    assert measured.asked == [8]
    assert time.time_s == pytest.approx(1.0 + outside.time_s)
    assert 0.02 < time.error < outside.error
    assert time.assumptions == outside.assumptions
    assert TwoLevelTimes(Second(), network_named("ndr")).time_of("all_reduce", MIB, 8, EIGHT_PER_NODE) == (
        CollectiveTime(time_s=1.0, latency_s=0.5, error=0.02)
    )


def test_more_cards_carry_more_out_of_a_node() -> None:
    few, many = (RankLayout(ranks_per_node=8, cards_per_node=cards) for cards in (1, 8))
    times = TwoLevelTimes(Second(), network_named("400gbe"))
    slow, fast = (times.time_of("all_reduce", 1024 * MIB, 16, layout).time_s - 1.0 for layout in (few, many))
    assert slow > 7 * fast


def test_many_gpus_in_one_node_are_an_assumption() -> None:
    few = network_named("nvlink4").time_of("all_reduce", MIB, 8, ONE_NODE)
    many = network_named("nvlink4").time_of("all_reduce", MIB, 64, ONE_NODE)
    assert "all 64 GPUs are in one node" in many.assumptions
    assert not any("one node" in text for text in few.assumptions)
