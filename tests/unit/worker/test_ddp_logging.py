"""What DDP says of its buckets, whichever keys this torch uses."""

from typing import Any

import pytest

from scalescope.worker.ddp_logging import bucket_counters


class Told:
    """Stands in for a wrapped model."""

    def __init__(self, told: dict[str, Any] | Exception) -> None:
        self._told = told

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        if isinstance(self._told, Exception):
            raise self._told
        return self._told


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"bucket_sizes": "10, 20"}, {"bucket_bytes": "10,20"}),
        ({"bucket_sizes": "30", "rebuilt_bucket_sizes": "10, 20"}, {"bucket_bytes": "10,20"}),
        ({"bucket_sizes": "30", "rebuilt_bucket_sizes": ""}, {"bucket_bytes": "30"}),
        ({}, {}),
        ({"bucket_sizes": "unknown"}, {}),
        (AttributeError("gone"), {}),
        (RuntimeError("not ready"), {}),
    ],
)
def test_the_rebuilt_buckets_count_where_there_are_any(told: Any, found: dict[str, str]) -> None:
    assert bucket_counters(Told(told)) == found  # type: ignore[arg-type]
