"""Formats of earlier versions: what they stored, in the words of today. Everything old is read here alone."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalescope.experiment.machines.nodes import NodeDifference
from scalescope.results.stored.regular_files import open_regular

_INTERRUPTED = "interrupted by "  # how the reason of a launch began that a signal ended
_LONGEST_STATUS = 20


def summary_status(entry: Mapping[str, Any]) -> str:
    """How a trial of a results.json ended; earlier versions had an interruption only in its reason."""
    interrupted = str(entry.get("reason")).startswith(_INTERRUPTED)
    return "interrupted" if interrupted else str(entry["status"])[:_LONGEST_STATUS]


def request_of_comment(path: Path) -> tuple[str, tuple[str, ...]]:
    """The verb and its flags from the comment that begins an experiment file; empty where it has none."""
    try:
        with os.fdopen(open_regular(path), encoding="utf-8", errors="replace") as stream:
            words = stream.readline(10_000).removeprefix("#").split()
        start, end = words.index("scalescope"), words.index("FILE")
    except (OSError, ValueError):
        return "", ()
    verb, *flags = words[start + 1 : end] or [""]
    return verb, tuple(flags)


def node_differences_of(environment: Mapping[str, Any]) -> tuple[NodeDifference, ...]:
    """In what the nodes of an environment.json differ.

    Each is an object today; earlier versions stored a sentence, `cores: 64 on n1, n2; 32 on n3`.
    """
    return tuple(
        _from_sentence(stored) if isinstance(stored, str) else NodeDifference.from_json(stored)
        for stored in environment.get("node_differences") or ()
    )


def _from_sentence(text: str) -> NodeDifference:
    name, _, values = text.partition(": ")
    parts = (part.rpartition(" on ") for part in values.split("; "))
    return NodeDifference(
        name=name, hosts_by_value={value: tuple(hosts.split(", ")) for value, _, hosts in parts}
    )
