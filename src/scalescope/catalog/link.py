"""Link rates as people write them: `1gbit`, or `0:1gbit,1:100mbit` per rank."""

import re

from scalescope.errors import BadInput

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(k|m|g)bit")
_SCALES = {"k": 1e3, "m": 1e6, "g": 1e9}


def parse_rate(text: str, origin: str) -> float:
    """Bits per second."""
    match = _RATE.fullmatch(text.strip().lower())
    rate = float(match[1]) * _SCALES[match[2]] if match else 0.0
    if not 1e5 <= rate <= 1e12:
        raise BadInput(f"{origin}: expected a rate such as 100mbit, 1gbit or 10gbit, got {text!r}")
    return rate


def parse_link(text: str, origin: str) -> str:
    """The link in its canonical form, checked."""
    parts = [part.strip().lower() for part in text.split(",")]
    if len(parts) == 1 and ":" not in parts[0]:
        parse_rate(parts[0], origin)
        return parts[0]
    ranks = []
    for part in parts:
        rank, colon, rate = part.partition(":")
        if not colon or not rank.isdecimal() or int(rank) in ranks:
            raise BadInput(f"{origin}: expected RANK:RATE for each rank once, got {part!r}")
        parse_rate(rate, origin)
        ranks.append(int(rank))
    return ",".join(sorted(parts, key=lambda part: int(part.partition(":")[0])))


def rates_of(link: str, ranks: int) -> list[float]:
    """Bits per second of every rank's link."""
    if ":" not in link:
        return [parse_rate(link, "link")] * ranks
    given = {int(part.partition(":")[0]): part.partition(":")[2] for part in link.split(",")}
    missing = [rank for rank in range(ranks) if rank not in given]
    if missing:
        raise BadInput(f"--link {link}: has no rate for rank {missing[0]}")
    return [parse_rate(given[rank], "link") for rank in range(ranks)]
