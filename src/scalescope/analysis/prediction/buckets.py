"""Buckets: how DDP groups gradients for its exchange, once it has seen in which order they become ready."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.prediction.profile import Gradient

_MIB = 1 << 20
_DEFAULT_CAP = 25 * _MIB
_DEFAULT_FIRST = _MIB  # applies only where no cap was set


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangedBucket:
    """Gradients that are exchanged together, as soon as the last of them is ready."""

    size_bytes: int
    ready_s: float


def buckets_of(gradients: Sequence[Gradient], cap_mb: float | None) -> tuple[ExchangedBucket, ...]:
    """A bucket closes once it reaches its cap, so it may be larger."""
    cap = _DEFAULT_CAP if cap_mb is None else int(cap_mb * _MIB)
    limit = _DEFAULT_FIRST if cap_mb is None else cap
    buckets: list[ExchangedBucket] = []
    size, ready_s = 0, 0.0
    for gradient in gradients:
        size += gradient.size_bytes
        ready_s = max(ready_s, gradient.ready_s)
        if size >= limit:
            buckets.append(ExchangedBucket(size_bytes=size, ready_s=ready_s))
            size, limit = 0, cap
    if size:
        buckets.append(ExchangedBucket(size_bytes=size, ready_s=ready_s))
    return tuple(buckets)
