"""The memory benchmark's own parts: whole batches, and libraries that were given no memory."""

import pytest
import torch

from scalescope.worker.benchmarks import memory
from scalescope.worker.benchmarks.memory import next_whole


def test_the_short_end_of_a_pass_is_left_out() -> None:
    stream = iter([torch.zeros(size) for size in (3, 8, 8, 3, 8)])
    assert [len(next_whole(stream, 8)) for _ in range(3)] == [8, 8, 8]


def test_batches_of_any_size_do_not_end_the_world() -> None:
    assert len(next_whole(iter([torch.zeros(2), torch.zeros(3)]), 8)) == 3


@pytest.mark.parametrize(
    "message", ["could not create a primitive", "could not execute a primitive", "std::bad_alloc"]
)
def test_a_library_that_gets_nothing_is_out_of_memory(message: str) -> None:
    with pytest.raises(MemoryError, match=message), memory._limited(1 << 40, torch.device("cpu")):
        raise RuntimeError(message)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes"), memory._limited(1 << 40, torch.device("cpu")):
        raise RuntimeError("shapes do not match")
