"""What DDP says of itself. The one place that knows its private logging data."""

from typing import Any

from torch.nn.parallel import DistributedDataParallel

Counters = dict[str, float | int | str | None]


def bucket_counters(wrapped: DistributedDataParallel) -> Counters:
    """The sizes of the buckets it sends, first to last; nothing where it does not say."""
    try:
        told: dict[str, Any] = wrapped._get_ddp_logging_data()
    except (AttributeError, RuntimeError):
        return {}
    text = str(told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes") or "")
    sizes = [word.strip() for word in text.split(",") if word.strip().isdigit()]
    return {"bucket_bytes": ",".join(sizes)} if sizes else {}
