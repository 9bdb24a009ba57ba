"""What the hardware should give, and a measured number as a share of it."""

import dataclasses

import pytest

from scalescope.analysis.collectives import CollectiveRow
from scalescope.analysis.comm.expectation import expectation_of
from scalescope.analysis.comm.expected import Expected, UnknownRate
from scalescope.hardware.published import curve_for, published_all_reduce


def make_row(size: int, time_s: float, ranks: int = 8, collective: str = "all_reduce") -> CollectiveRow:
    return CollectiveRow(
        collective=collective,
        dtype="float32",
        ranks=ranks,
        in_place=False,
        size_bytes=size,
        times_s=(time_s,),
        transfers_s=(time_s,),
        last_rank=None,
        wrong=0,
    )


def test_a_shaped_link_is_held_against_its_rate() -> None:
    expectation = expectation_of(make_row(100_000_000, 1.0, ranks=2), None, "1gbit")
    assert expectation is not None
    assert expectation.share == pytest.approx(100e6 / 125e6)
    assert expectation.of_what == "the link of 1gbit"
    assert expectation.source == "the emulated link"


def test_the_slowest_link_decides() -> None:
    expectation = expectation_of(make_row(10_000_000, 1.0, ranks=2), None, "0:1gbit,1:100mbit")
    assert expectation is not None
    assert expectation.share == pytest.approx(10e6 / 12.5e6)


def test_the_link_that_was_set_comes_before_what_the_gpu_could_do() -> None:
    expectation = expectation_of(make_row(1 << 20, 1.0), "NVIDIA H200", "1gbit")
    assert expectation is not None and expectation.source == "the emulated link"


def test_a_gpu_is_held_against_the_published_curve_at_that_size() -> None:
    published = curve_for("NVIDIA H200", 8)
    assert published is not None
    size, time_s, _ = published.points[5]
    expectation = expectation_of(make_row(size, 2 * time_s), "NVIDIA H200", None)
    assert expectation is not None
    assert expectation.share == pytest.approx(0.5)
    assert expectation.of_what == "8×H200 SXM"
    assert expectation.source == published.source


def test_between_published_sizes_the_curve_is_interpolated() -> None:
    published = curve_for("NVIDIA H200", 8)
    assert published is not None
    (low, fast, _), (high, slow, _) = published.points[-2:]
    expectation = expectation_of(make_row((low + high) // 2, slow), "NVIDIA H200", None)
    assert expectation is not None
    assert fast / slow < expectation.share < 1


@pytest.mark.parametrize(
    ("row", "gpu"),
    [
        (make_row(1 << 30, 1.0), None),
        (make_row(1 << 30, 1.0), "NVIDIA L4"),
        (make_row(1 << 30, 1.0, ranks=4), "NVIDIA H200"),
        (make_row(1 << 30, 1.0, ranks=16), "NVIDIA H100 80GB HBM3"),  # published over two nodes only
        (make_row(1 << 30, 1.0), "NVIDIA H100 PCIe"),
        (make_row(1 << 30, 1.0), "NVIDIA H100 NVL"),
        (make_row(1 << 30, 1.0), "NVIDIA H200 NVL"),
        (make_row(1 << 30, 1.0), "NVIDIA GH200 480GB"),
        (make_row(1 << 30, 1.0, collective="broadcast"), "NVIDIA H200"),
        (make_row(8, 1.0), "NVIDIA H200"),  # smaller than what was published
        (make_row(1 << 40, 1.0), "NVIDIA H200"),
    ],
)
def test_without_a_published_curve_nothing_is_expected(row: CollectiveRow, gpu: str | None) -> None:
    assert expectation_of(row, gpu, None) is None


def test_a_barrier_has_no_expectation() -> None:
    assert expectation_of(make_row(0, 1.0, ranks=2, collective="barrier"), None, "1gbit") is None


def test_published_curves_have_sources_and_agree_with_their_own_bandwidth() -> None:
    curves = published_all_reduce()
    assert {(curve.gpu, curve.gpus, curve.nodes) for curve in curves} >= {
        ("H200 SXM", 8, 1),
        ("H100 SXM", 16, 2),
    }
    for curve in curves:
        assert curve.source
        assert [point[0] for point in curve.points] == sorted({point[0] for point in curve.points})
        size, time_s, bus = curve.points[-1]
        assert size / time_s * 2 * (curve.gpus - 1) / curve.gpus == pytest.approx(bus, rel=0.01)


def test_a_system_is_found_by_gpu_ranks_and_nodes() -> None:
    curve = curve_for("NVIDIA H100 80GB HBM3", 16, nodes=2)
    assert curve is not None and curve.nodes == 2
    assert curve_for("NVIDIA H100 80GB HBM3", 16) is None
    assert curve_for("NVIDIA H200", 16, nodes=2) is None


def test_a_curve_of_two_nodes_is_for_ranks_on_two_nodes() -> None:
    spread = dataclasses.replace(make_row(1 << 30, 1.0, ranks=16), hosts=("a",) * 8 + ("b",) * 8)
    expectation = expectation_of(spread, "NVIDIA H100 80GB HBM3", None)
    assert expectation is not None and expectation.of_what == "16×H100 SXM on 2 nodes"


def test_a_large_message_is_held_against_links_and_a_small_one_is_not() -> None:
    links = Expected(bytes_per_s=100e9, path="some links", source="somewhere")
    row = make_row(1 << 26, (1 << 26) * 1.75 / 50e9)
    expectation = expectation_of(row, "NVIDIA L4", None, links)
    assert expectation is not None and expectation.share == pytest.approx(0.5)
    assert (expectation.of_what, expectation.source) == ("what some links should carry", "somewhere")
    assert expectation_of(make_row(1 << 20, 1.0), "NVIDIA L4", None, links) is None
    assert expectation_of(row, "NVIDIA L4", None, UnknownRate(missing="something")) is None


def test_large_messages_are_held_against_what_is_usual_where_no_curve_is_published() -> None:
    row = CollectiveRow(
        collective="all_gather",
        dtype="float32",
        ranks=8,
        in_place=False,
        size_bytes=1 << 30,
        times_s=((1 << 30) * 7 / 8 / 190e9,),
        transfers_s=(1.0,),
        last_rank=None,
        wrong=0,
    )
    expectation = expectation_of(row, "NVIDIA H100 80GB HBM3", None)
    assert expectation is not None
    assert expectation.share == pytest.approx(0.5)
    assert expectation.of_what == "what is usual on 8×NVIDIA H100 80GB HBM3"
    assert expectation_of(row, "NVIDIA L4", None) is None
