"""Old formats: what earlier versions stored in another way, read as what is stored today."""

from collections.abc import Mapping
from typing import Any

from scalescope.experiment.nodes import NodeDifference
from scalescope.results.result import RankRecord

BUCKET_BYTES = "bucket_bytes"


def bucket_bytes_of(record: RankRecord) -> tuple[int, ...] | None:
    """The sizes of a rank's gradient buckets, first to last; None where they are not known.

    They are samples today; earlier versions stored a counter, `4000,16`.
    """
    if record.samples.get(BUCKET_BYTES):
        return tuple(int(size) for size in record.samples[BUCKET_BYTES])
    text = record.counters.get(BUCKET_BYTES)
    return tuple(int(size) for size in str(text).split(",")) if text else None


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
