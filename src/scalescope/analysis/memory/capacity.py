"""How much a rank's peak may become: its share of what the device, or the host, has for it."""

from collections.abc import Sequence

from scalescope.results.result import RankRecord


def room_of(records: Sequence[RankRecord]) -> int | None:
    """The least that any rank has; ranks on one GPU share it, and ranks on one host its memory."""
    gpus: dict[str, list[RankRecord]] = {}
    hosts: dict[str, list[RankRecord]] = {}
    for record in records:
        gpu = record.counters.get("device/identity") or f"of rank {record.rank}"
        gpus.setdefault(str(gpu), []).append(record)
        hosts.setdefault(record.host, []).append(record)
    rooms = [_share_of_gpu(sharing) for sharing in gpus.values()]
    rooms += [_share_of_host(sharing) for sharing in hosts.values()]
    return min((room for room in rooms if room is not None), default=None)


def _share_of_gpu(records: list[RankRecord]) -> int | None:
    """What is free and what torch has already, for all ranks together; a rank that left freed its part."""
    free = _numbers(records, "device/free")
    reserved = _numbers(records, "measured/reserved")
    if len(free) < len(records) or len(reserved) < len(records):
        return None
    return (min(free) + sum(reserved)) // len(records)


def _share_of_host(records: list[RankRecord]) -> int | None:
    """What the first rank found; later ones may have found batches of the others."""
    available = _numbers(records, "device/available")
    return max(available) // len(records) if available else None


def _numbers(records: list[RankRecord], name: str) -> list[int]:
    values = [record.counters.get(name) for record in records]
    return [value for value in values if isinstance(value, int)]
