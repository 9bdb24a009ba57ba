"""Quantities in words: a number with its unit, the same in findings, tables and pages."""

import math
from collections.abc import Sequence

_CLOCK_TICK_S = 1e-9  # less is what rounding leaves of a difference


def significant(value: float, digits: int = 3) -> str:
    """A number with about `digits` digits, never in exponent form, thousands separated."""
    if value == 0:
        return "0"
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    if magnitude:
        return f"{value:,.{max(0, digits - magnitude)}f}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{decimals}f}".rstrip("0").rstrip(".")


def milliseconds(seconds: float) -> str:
    """`12.9`, `−0.35`: for columns whose heading has the unit."""
    if abs(seconds) < _CLOCK_TICK_S:
        return "0"
    return f"−{significant(-seconds * 1e3)}" if seconds < 0 else significant(seconds * 1e3)


def in_ms(seconds: float, decimals: int | None = None) -> str:
    """`12.9 ms`, or with a fixed number of decimals `12.90 ms`."""
    return f"{number_of_ms(seconds, decimals)} ms"


def number_of_ms(seconds: float, decimals: int | None) -> str:
    """`12.9`, or with a fixed number of decimals `12.90`."""
    return milliseconds(seconds) if decimals is None else f"{seconds * 1e3:.{decimals}f}"


def data_size(size: float) -> str:
    """`512 B`, `1.50 MiB`, `139 GiB`: three digits and a unit of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 999.5 or unit == "TiB":
            return f"{significant(size)} {unit}" if unit != "B" else f"{size:.0f} B"
        size /= 1024
    raise AssertionError("a size has a unit")


def percent(share: float) -> str:
    """`66 %`: a share of a whole."""
    return f"{round(share * 100, 0) + 0.0:.0f} %"  # never -0 %


def counted(number: int, thing: str) -> str:
    """`1 rank`, `2 ranks`, `5 launches`, `2 processes`, `3 tries`."""
    if number != 1 and thing.endswith("y"):
        return f"{number:,} {thing[:-1]}ies"
    ending = "" if number == 1 else "es" if thing.endswith(("h", "s")) else "s"
    return f"{number:,} {thing}{ending}"


def numbered_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 8-15` where they follow each other, otherwise `ranks 3,7,9`."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {rank_numbers(ranks)}"


def rank_numbers(ranks: Sequence[int]) -> str:
    """`8-15` where they follow each other, otherwise one by one."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def data_rate(bytes_per_s: float) -> str:
    """`512 B/s`, `1.25 GB/s`: three digits and a unit of 1000, as networks have it."""
    for scale, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bytes_per_s >= scale:
            return f"{significant(bytes_per_s / scale)} {unit}"
    return f"{significant(bytes_per_s)} B/s"


def flop_rate(flops_per_s: float) -> str:
    """`989 TFLOP/s`, `52.0 GFLOP/s`: three digits and a unit of 1000."""
    for scale, unit in ((1e12, "TFLOP/s"), (1e9, "GFLOP/s")):
        if flops_per_s >= scale:
            return f"{significant(flops_per_s / scale)} {unit}"
    return f"{significant(flops_per_s / 1e6)} MFLOP/s"
