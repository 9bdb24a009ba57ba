"""Expectation: what the hardware should give, so that a number can be called good or bad."""

from dataclasses import dataclass

from scalescope.analysis.collectives import CollectiveRow
from scalescope.analysis.comm.curve import Curve
from scalescope.analysis.comm.expected import Expectable, Expected, system_name
from scalescope.catalog.link import rates_of
from scalescope.hardware.published import PublishedCurve, curve_for, typical_busbw

_LARGE_BYTES = 1 << 24  # from here on a link's rate says what a message should reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A measured bus bandwidth as a share of what was to be expected, and where that comes from."""

    share: float
    of_what: str
    source: str


def expectation_of(
    row: CollectiveRow, gpu_name: str | None, link: str | None, by_links: Expectable | None = None
) -> Expectation | None:
    """Hold a row against the shaped link, a published curve of as many GPUs on as many nodes, what is usual
    for large messages, or what the links that were found carry; None where none of these is known."""
    if not row.size_bytes:
        return None
    if link is not None:
        slowest = min(rates_of(link, row.ranks)) / 8
        return Expectation(
            share=row.busbw_bytes_per_s / slowest, of_what=f"the link of {link}", source="the emulated link"
        )
    nodes = len(set(row.hosts)) or 1
    published = curve_for(gpu_name, row.ranks, nodes) if row.collective == "all_reduce" else None
    if published is not None:
        return _against_curve(row, published)
    typical = _against_typical(row, gpu_name) if gpu_name is not None and nodes == 1 else None
    return typical or _against_links(row, by_links)


def _against_curve(row: CollectiveRow, published: PublishedCurve) -> Expectation | None:
    curve = Curve.through([(size, time_s) for size, time_s, _ in published.points])
    if not curve.points[0][0] <= row.size_bytes <= curve.points[-1][0]:
        return None
    return Expectation(
        share=curve.time_s(row.size_bytes) / row.time_s,
        of_what=system_name(published),
        source=published.source,
    )


def _against_typical(row: CollectiveRow, gpu_name: str) -> Expectation | None:
    typical = typical_busbw(gpu_name, row.ranks, row.collective, row.size_bytes)
    if typical is None:
        return None
    share = row.busbw_bytes_per_s / typical.busbw
    return Expectation(share=share, of_what=f"what is usual on {row.ranks}×{gpu_name}", source=typical.source)


def _against_links(row: CollectiveRow, by_links: Expectable | None) -> Expectation | None:
    if not isinstance(by_links, Expected) or row.size_bytes < _LARGE_BYTES:
        return None
    share = row.busbw_bytes_per_s / by_links.bytes_per_s
    return Expectation(share=share, of_what=f"what {by_links.path} should carry", source=by_links.source)
