"""Expectation: what the hardware should give, so that a number can be called good or bad."""

from dataclasses import dataclass

from scalescope.analysis.collectives import CollectiveRow
from scalescope.analysis.comm.curve import Curve
from scalescope.catalog.link import rates_of
from scalescope.hardware.published import PublishedCurve, curve_for, typical_busbw


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A measured bus bandwidth as a share of what was to be expected, and where that comes from."""

    share: float
    of_what: str
    source: str


def expectation_of(row: CollectiveRow, gpu_name: str | None, link: str | None) -> Expectation | None:
    """Hold a row against the shaped link, or against a published curve; None where neither fits."""
    if not row.size_bytes:
        return None
    if link is not None:
        slowest = min(rates_of(link, row.ranks)) / 8
        return Expectation(
            share=row.busbw_bytes_per_s / slowest, of_what=f"the link of {link}", source="the emulated link"
        )
    if gpu_name is None:
        return None
    published = curve_for(gpu_name, row.ranks) if row.collective == "all_reduce" else None
    return _against_curve(row, published) if published else _against_typical(row, gpu_name)


def _against_curve(row: CollectiveRow, published: PublishedCurve) -> Expectation | None:
    curve = Curve.through([(size, time_s) for size, time_s, _ in published.points])
    if not curve.points[0][0] <= row.size_bytes <= curve.points[-1][0]:
        return None
    return Expectation(
        share=curve.time_s(row.size_bytes) / row.time_s,
        of_what=f"{published.gpus}×{published.gpu}",
        source=published.source,
    )


def _against_typical(row: CollectiveRow, gpu_name: str) -> Expectation | None:
    typical = typical_busbw(gpu_name, row.ranks, row.collective, row.size_bytes)
    if typical is None:
        return None
    share = row.busbw_bytes_per_s / typical.busbw
    return Expectation(share=share, of_what=f"what is usual on {row.ranks}×{gpu_name}", source=typical.source)
