"""Formats of earlier versions: what they stored, in the words of today. Everything old is read here alone."""

from pathlib import Path
from typing import Any


def upgraded_result(raw: dict[str, Any]) -> dict[str, Any]:
    """A line of trials.jsonl of schema 1 as one of schema 2."""
    result = {**raw, "schema_version": "2.0"}
    if raw.get("status") == "failed" and str(raw.get("reason")).startswith("interrupted by "):
        result["status"] = "interrupted"
    return result


def request_of_comment(path: Path) -> tuple[str, tuple[str, ...]]:
    """The verb and its flags from the comment that begins an experiment file; empty where it has none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            words = stream.readline(10_000).removeprefix("#").split()
        start, end = words.index("scalescope"), words.index("FILE")
    except (OSError, ValueError):
        return "", ()
    verb, *flags = words[start + 1 : end] or [""]
    return verb, tuple(flags)
