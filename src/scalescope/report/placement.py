"""Placement lines: every rank for few ranks, a line for each node beyond eight."""

import re

_MOST_SINGLE_LINES = 8
_RANK = re.compile(r"\[Rank (\d+)\]")
_NAME = re.compile(r"name=([^,]*)")


def placement_lines(lines: list[str], hosts: list[str]) -> list[str]:
    """The ranks' own lines, or a summary by node where they are too many to read."""
    if len(lines) <= _MOST_SINGLE_LINES:
        return lines
    grouped: dict[str, list[str]] = {}
    for number, line in enumerate(lines):
        grouped.setdefault(hosts[number], []).append(line)
    return [_node_line(host, members) for host, members in grouped.items()]


def _node_line(host: str, members: list[str]) -> str:
    ranks = [int(match[1]) for line in members if (match := _RANK.search(line))]
    names = sorted({match[1] for line in members if (match := _NAME.search(line))})
    numbers = f"{min(ranks)}-{max(ranks)}" if ranks else "unknown"
    return f"[Ranks {numbers}] {host}: {len(members)} ranks, name={' / '.join(names) or 'unknown'}"
