"""Numbers as people read them: sensible digits, units, intervals. Every table and sentence uses these."""

from collections.abc import Iterable

from scalescope.analysis.statistics import Estimate
from scalescope.quantities import counted as counted
from scalescope.quantities import data_rate as data_rate
from scalescope.quantities import data_size as data_size
from scalescope.quantities import flop_rate as flop_rate
from scalescope.quantities import in_ms as in_ms
from scalescope.quantities import milliseconds as milliseconds
from scalescope.quantities import number_of_ms
from scalescope.quantities import percent as percent
from scalescope.quantities import significant as significant

MISSING = "—"


def range_ms(low_s: float, high_s: float, decimals: int | None = None) -> str:
    """`12.8 to 12.9 ms`: an interval."""
    return f"{number_of_ms(low_s, decimals)} to {in_ms(high_s, decimals)}"


def in_s(seconds: float) -> str:
    """`0.129 s`: the length of a measurement."""
    return f"{significant(seconds)} s"


def in_us_or_ms(seconds: float | None) -> str:
    """`85.0 µs`, `12.9 ms`: the time of one collective; `unknown` for None."""
    if seconds is None:
        return "unknown"
    return f"{significant(seconds * 1e6)} µs" if seconds < 0.01 else in_ms(seconds)


def gigabytes_per_s(bytes_per_s: float) -> str:
    """`1.25`: for columns whose heading has the unit."""
    return significant(bytes_per_s / 1e9)


def short_percent(share: float) -> str:
    """`2.5 %`, `3 %`: a decimal only where it is not zero."""
    return f"{f'{share * 100:.1f}'.removesuffix('.0')} %"


def signed_percent(share: float, decimals: int = 1) -> str:
    """`+3.2 %`, `-8.1 %`: a change."""
    rounded = round(share * 100, decimals) + 0.0  # without the sign of a negative zero
    return f"{rounded:+.{decimals}f} %"


def is_useful(estimate: Estimate) -> bool:
    """Whether an interval is narrow enough to be of use: two launches can give one from 0 to 15,000 %."""
    if estimate.low is None or estimate.high is None:
        return False
    return estimate.high <= 3 * estimate.low


def useful_interval(estimate: Estimate) -> tuple[float | None, float | None]:
    """The interval if it is narrow enough: one from 0 to 15,000 % would only hide the rest of a figure."""
    return (estimate.low, estimate.high) if is_useful(estimate) else (None, None)


def percent_with_interval(estimate: Estimate) -> str:
    """`61 % [58, 64]`, or the number alone where there is no interval."""
    if estimate.low is None or estimate.high is None:
        return percent(estimate.value)
    if not is_useful(estimate):
        return f"{percent(estimate.value)} [wide]"
    return f"{percent(estimate.value)} [{estimate.low * 100:.0f}, {estimate.high * 100:.0f}]"


def detection_limit(smallest_effects: Iterable[float | None]) -> tuple[str, ...]:
    """How small a difference each of several comparisons could detect; nothing where none is known."""
    known = [effect for effect in smallest_effects if effect is not None]
    if not known:
        return ()
    if min(known) > 1.0:
        return ("Differences below 100 % cannot be detected reliably with this many launches.",)
    least, most = detectable(min(known)), detectable(max(known))
    limit = least if least == most else f"{least} (where launches vary most: {most})"
    return (f"Differences below {limit} cannot be detected reliably with this many launches.",)


def detectable(effect: float | None) -> str:
    """The smallest difference that a comparison could detect, in a cell."""
    if effect is None:
        return MISSING
    return "over 100 %" if effect > 1.0 else short_percent(effect)


def duration(seconds: float) -> str:
    """`45 s`, `3 min`, `1.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def shortened(text: str, most: int = 60) -> str:
    """The text, cut where it is too long for a cell."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
