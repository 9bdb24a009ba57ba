"""What the hardware should give, and a measured number as a share of it."""

import dataclasses

import pytest

from scalescope.analysis.collectives import CollectiveRow
from scalescope.analysis.comm.expectation import expectation_of
from scalescope.analysis.comm.expected import Expected, UnknownRate
from scalescope.hardware.published import curve_for, published_all_reduce
from tests.builders.results import make_row as made_row


def make_row(size: int, time_s: float, ranks: int = 8, collective: str = "all_reduce") -> CollectiveRow:
    return made_row(size, time_s, collective=collective, ranks=ranks, in_place=False)


def test_the_slowest_emulated_link_is_what_is_expected_whatever_the_gpu() -> None:
    expectation = expectation_of(make_row(100_000_000, 1.0, ranks=2), None, "1gbit")
    assert expectation is not None
    assert expectation.share == pytest.approx(100e6 / 125e6)
    assert expectation.of_what == "the link of 1gbit"
    assert expectation.source == "the emulated link"
    expectation = expectation_of(make_row(10_000_000, 1.0, ranks=2), None, "0:1gbit,1:100mbit")
    assert expectation is not None
    assert expectation.share == pytest.approx(10e6 / 12.5e6)
    expectation = expectation_of(make_row(1 << 20, 1.0), "NVIDIA H200", "1gbit")
    assert expectation is not None and expectation.source == "the emulated link"
    assert expectation_of(make_row(0, 1.0, ranks=2, collective="barrier"), None, "1gbit") is None


def test_a_gpu_is_held_against_the_published_curve_at_that_size() -> None:
    published = curve_for("NVIDIA H200", 8)
    assert published is not None
    size, time_s, _ = published.points[5]
    expectation = expectation_of(make_row(size, 2 * time_s), "NVIDIA H200", None)
    assert expectation is not None
    assert expectation.share == pytest.approx(0.5)
    assert expectation.of_what == "8×H200 SXM"
    assert expectation.source == published.source
    spread = dataclasses.replace(make_row(1 << 30, 1.0, ranks=16), hosts=("a",) * 8 + ("b",) * 8)
    expectation = expectation_of(spread, "NVIDIA H100 80GB HBM3", None)
    assert expectation is not None and expectation.of_what == "16×H100 SXM on 2 nodes"


@pytest.mark.parametrize(
    ("row", "gpu"),
    [
        (make_row(1 << 30, 1.0), None),
        (make_row(1 << 30, 1.0), "NVIDIA L4"),
        (make_row(1 << 30, 1.0, ranks=4), "NVIDIA H200"),
        (make_row(1 << 30, 1.0, ranks=16), "NVIDIA H100 80GB HBM3"),  # published over two nodes only
        (make_row(1 << 30, 1.0, collective="broadcast"), "NVIDIA H200"),
        (make_row(8, 1.0), "NVIDIA H200"),  # smaller than what was published
        (make_row(1 << 40, 1.0), "NVIDIA H200"),
    ],
)
def test_without_a_published_curve_nothing_is_expected(row: CollectiveRow, gpu: str | None) -> None:
    assert expectation_of(row, gpu, None) is None


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


def test_a_large_message_is_held_against_links_and_a_small_one_is_not() -> None:
    links = Expected(bytes_per_s=100e9, path="some links", source="somewhere")
    row = make_row(1 << 26, (1 << 26) * 1.75 / 50e9)
    expectation = expectation_of(row, "NVIDIA L4", None, links)
    assert expectation is not None and expectation.share == pytest.approx(0.5)
    assert (expectation.of_what, expectation.source) == ("what some links should carry", "somewhere")
    assert expectation_of(make_row(1 << 20, 1.0), "NVIDIA L4", None, links) is None
    assert expectation_of(row, "NVIDIA L4", None, UnknownRate(missing="something")) is None


def test_large_messages_are_held_against_what_is_usual_where_no_curve_is_published() -> None:
    row = make_row(1 << 30, (1 << 30) * 7 / 8 / 190e9, collective="all_gather")
    expectation = expectation_of(row, "NVIDIA H100 80GB HBM3", None)
    assert expectation is not None
    assert expectation.share == pytest.approx(0.5)
    assert expectation.of_what == "what is usual on 8×NVIDIA H100 80GB HBM3"
    assert expectation_of(row, "NVIDIA L4", None) is None
