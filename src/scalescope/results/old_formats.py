"""Formats of earlier versions: what they stored, in the words of today. Everything old is read here alone."""

from collections.abc import Mapping
from typing import Any

from scalescope.results.result import RankRecord

BUCKET_BYTES = "bucket_bytes"
_ABLATIONS = {"noop_comm": "without_communication", "preloaded": "with_preloaded_input"}
_INTERRUPTED = "interrupted by "  # how the reason of a launch began that a signal ended
_LAUNCHES_OF_A_STAGE = 100
_STAGES = ((95, "scaling"), (90, "confirm"), (40, "remove"), (1, "add"))
_VALUES = {
    ("purpose", "listen"): "nccl_log",
    ("among", "one node"): "one_node",
    ("among", "one a node"): "one_per_node",
}


def upgraded_result(raw: dict[str, Any]) -> dict[str, Any]:
    """A line of trials.jsonl of schema 1 as one of schema 2."""
    result = {**raw, "schema_version": "2.0"}
    settings = raw.get("settings")
    if isinstance(settings, dict):
        result["settings"] = upgraded_settings(settings)
    if raw.get("status") == "failed" and str(raw.get("reason")).startswith(_INTERRUPTED):
        result["status"] = "interrupted"
    launch = raw.get("launch")
    if isinstance(launch, int) and launch >= _LAUNCHES_OF_A_STAGE:  # only the search of tune counted so far
        stage, result["round"] = divmod(launch, _LAUNCHES_OF_A_STAGE)
        result["stage"] = _stage(stage)
    return result


def _stage(number: int) -> dict[str, Any]:
    """A stage of the search of tune, which was the hundreds of a launch's number."""
    kind, first = next((kind, first) for first, kind in _STAGES if number >= first)
    return {"kind": kind, "attempt": number - first}


def upgraded_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's settings under today's names and values; its id stays what it was."""
    upgraded = {
        name: _VALUES.get((name, value), value) if isinstance(value, str) else value
        for name, value in settings.items()
    }
    ablation = upgraded.pop("ablation", None)
    if isinstance(ablation, str):
        removed = ablation.split("+")
        upgraded |= {name: first in removed for first, name in _ABLATIONS.items()}
    return dict(sorted(upgraded.items()))


def bucket_bytes_of(record: RankRecord) -> tuple[int, ...] | None:
    """The sizes of a rank's gradient buckets, first to last; None where they are not known.

    They are samples today; earlier versions stored a counter, `4000,16`.
    """
    if record.samples.get(BUCKET_BYTES):
        return tuple(int(size) for size in record.samples[BUCKET_BYTES])
    sizes = str(record.counters.get(BUCKET_BYTES) or "").split(",")
    return tuple(map(int, sizes)) if all(size.isdecimal() and len(size) < 20 for size in sizes) else None
