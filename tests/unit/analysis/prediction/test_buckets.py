"""Buckets as DDP forms them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.analysis.prediction.buckets import ExchangedBucket, buckets_of
from scalescope.analysis.prediction.profile import Gradient

MIB = 1 << 20


def gradients(*sizes: int) -> list[Gradient]:
    return [Gradient(size_bytes=size, ready_s=float(number)) for number, size in enumerate(sizes)]


def test_the_first_bucket_is_small_where_no_cap_is_set() -> None:
    sizes = [bucket.size_bytes // MIB for bucket in buckets_of(gradients(*[4 * MIB] * 16), None)]
    assert sizes == [4, 28, 28, 4]
    sizes = [bucket.size_bytes // MIB for bucket in buckets_of(gradients(*[4 * MIB] * 16), 25)]
    assert sizes == [28, 28, 8]
    assert buckets_of(gradients(MIB, MIB, MIB), 2) == (
        ExchangedBucket(size_bytes=2 * MIB, ready_s=1.0),
        ExchangedBucket(size_bytes=MIB, ready_s=2.0),
    )


@settings(max_examples=30)
@given(st.lists(st.integers(1, 50 * MIB), max_size=60), st.none() | st.floats(0.1, 100))
def test_no_byte_is_lost(sizes: list[int], cap: float | None) -> None:
    buckets = buckets_of(gradients(*sizes), cap)
    assert sum(bucket.size_bytes for bucket in buckets) == sum(sizes)
    assert [bucket.ready_s for bucket in buckets] == sorted(bucket.ready_s for bucket in buckets)
