"""Placement lines: every rank for few ranks, a line for each node beyond eight."""

from collections.abc import Sequence

from scalescope.results.ranks.rank_placement import RankPlacement

_MOST_SINGLE_LINES = 8


def placement_lines(ranks: Sequence[RankPlacement]) -> list[str]:
    """The ranks' own lines, or a summary by node where they are too many to read."""
    if len(ranks) <= _MOST_SINGLE_LINES:
        return [rank.line for rank in ranks]
    grouped: dict[str, list[RankPlacement]] = {}
    for rank in ranks:
        grouped.setdefault(rank.host, []).append(rank)
    return [_node_line(host, members) for host, members in grouped.items()]


def _node_line(host: str, members: Sequence[RankPlacement]) -> str:
    numbers = [member.rank for member in members]
    names = sorted({member.device_name for member in members})
    return f"[Ranks {min(numbers)}-{max(numbers)}] {host}: {len(members)} ranks, name={' / '.join(names)}"
