"""Times of collectives that were measured, of those that were not, and on named hardware."""

import pytest

from scalescope.analysis.comm.curve import Curve
from scalescope.analysis.prediction.collective_times import MeasuredTimes, network_named
from scalescope.analysis.prediction.setup import RankLayout
from scalescope.errors import BadInput

MIB = 1 << 20
LATENCY_S, RATE = 1e-4, 1e9


def ring_s(size: float, ranks: int) -> float:
    return 2 * (ranks - 1) * LATENCY_S + 2 * (ranks - 1) / ranks * size / RATE


def measured(*ranks: int, through_cores: bool = False) -> MeasuredTimes:
    sizes = [1, *(MIB << step for step in range(7))]
    curves = {
        ("all_reduce", count): Curve.through([(size, ring_s(size, count)) for size in sizes])
        for count in ranks
    }
    return MeasuredTimes(curves, error=0.02, through_cores=through_cores)


def test_a_measured_size_rests_on_nothing_else() -> None:
    time = measured(2).time_of("all_reduce", 4 * MIB, 2, RankLayout())
    assert time.time_s == pytest.approx(ring_s(4 * MIB, 2))
    assert (time.error, time.assumptions) == (0.02, ())
    time = measured(4, through_cores=True).time_of("all_reduce", MIB, 4, RankLayout(cores_per_node=2))
    assert time.time_s == pytest.approx(ring_s(MIB, 4))
    assert measured(2).time_of("all_reduce", MIB, 1, RankLayout()).time_s == 0.0


def test_a_ring_carries_a_curve_over_to_other_ranks() -> None:
    for ranks in (4, 1024):
        time = measured(2).time_of("all_reduce", 16 * MIB, ranks, RankLayout())
        assert time.time_s == pytest.approx(ring_s(16 * MIB, ranks), rel=1e-3)
        assert len(time.assumptions) == 1
    nearest = measured(2, 4).time_of("all_reduce", 16 * MIB, 8, RankLayout())
    assert "from 4" in nearest.assumptions[0]


@pytest.mark.parametrize("ranks", [4, 8])
def test_ranks_that_share_cores_take_longer(ranks: int) -> None:
    """A small exchange waits a little longer for cores; a large one takes as much longer as it has fewer."""
    on_two_cores, on_many = RankLayout(cores_per_node=2), RankLayout(cores_per_node=8)
    crowded = measured(2, through_cores=True)
    small, free = (crowded.time_of("all_reduce", 1, ranks, layout) for layout in (on_two_cores, on_many))
    assert 1.1 < small.time_s / free.time_s < ranks / 2
    large, free = (
        crowded.time_of("all_reduce", 64 * MIB, ranks, layout) for layout in (on_two_cores, on_many)
    )
    assert large.time_s / free.time_s == pytest.approx(ranks / 2, rel=0.05)
    assert any("share a core" in assumption for assumption in large.assumptions)


def test_cores_matter_only_where_ranks_share_them() -> None:
    alone, shared = (
        measured(2).time_of("all_reduce", 64 * MIB, 4, RankLayout(cores_per_node=cores)) for cores in (4, 2)
    )
    assert shared.time_s == pytest.approx(alone.time_s, rel=0.01)
    layout = RankLayout(ranks_per_node=2, cores_per_node=2)
    assert [layout.crowding(ranks) for ranks in (2, 4, 8)] == [1.0, 1.0, 1.0]
    assert [RankLayout(cores_per_node=2).crowding(ranks) for ranks in (1, 2, 4, 8)] == [1.0, 1.0, 2.0, 4.0]


def test_larger_messages_and_several_nodes_are_assumptions() -> None:
    time = measured(2).time_of("all_reduce", 256 * MIB, 2, RankLayout())
    assert time.time_s == pytest.approx(ring_s(256 * MIB, 2), rel=1e-3)
    assert "64 MiB" in time.assumptions[0]
    time = measured(8).time_of("all_reduce", MIB, 8, RankLayout(ranks_per_node=4))
    assert any("links" in assumption for assumption in time.assumptions)


def test_what_was_never_measured_is_refused() -> None:
    with pytest.raises(BadInput, match="scalescope comm"):
        measured(2).time_of("all_to_all", MIB, 2, RankLayout())
    with pytest.raises(BadInput, match="scalescope comm"):
        MeasuredTimes({}).time_of("all_gather", MIB, 2, RankLayout())


@pytest.mark.parametrize(
    ("collective", "backend", "share"),
    [
        ("all_gather", "nccl", 0.5),
        ("reduce_scatter", "nccl", 0.5),
        ("reduce_scatter", "gloo", 1.0),
        ("sendrecv", "gloo", 1.0),
        ("broadcast", "gloo", 1.0),
    ],
)
def test_other_collectives_follow_from_an_all_reduce(collective: str, backend: str, share: float) -> None:
    times = MeasuredTimes({("all_reduce", 2): Curve.through([(1, 1.0), (MIB, 2.0)])}, backend=backend)
    time = times.time_of(collective, MIB, 2, RankLayout())
    assert time.time_s == pytest.approx(2.0 * share)
    assert time.error > 0 and collective in time.assumptions[0]


def test_nccl_takes_a_tree_where_a_ring_has_too_many_steps() -> None:
    curves = {("all_reduce", 2): Curve.through([(1, 1.0), (MIB, 2.0)])}
    ring = MeasuredTimes(curves, backend="gloo").time_of("all_reduce", MIB, 1024, RankLayout())
    tree = MeasuredTimes(curves, backend="nccl").time_of("all_reduce", MIB, 1024, RankLayout())
    assert ring.time_s == pytest.approx(1023 * 1.0 + 1.0 * 1023 / 512)
    assert tree.time_s == pytest.approx(10 * 1.0 + 2.0)
    times = MeasuredTimes({("sendrecv", 4): Curve.through([(1, 1.0), (MIB, 2.0)])})
    assert times.time_of("sendrecv", MIB, 2, RankLayout()).time_s == 2.0


# named hardware


ONE_NODE = RankLayout()
EIGHT_PER_NODE = RankLayout(ranks_per_node=8, cards_per_node=8)


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


def test_many_gpus_in_one_node_are_an_assumption() -> None:
    few = network_named("nvlink4").time_of("all_reduce", MIB, 8, ONE_NODE)
    many = network_named("nvlink4").time_of("all_reduce", MIB, 64, ONE_NODE)
    assert "all 64 GPUs are in one node" in many.assumptions
    assert not any("one node" in text for text in few.assumptions)
