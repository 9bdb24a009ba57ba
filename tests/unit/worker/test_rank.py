"""How a rank describes what went wrong."""

import pytest
import torch

from scalescope.worker.rank import describe_error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_running_out_of_memory_is_told_in_many_ways(error: BaseException) -> None:
    assert describe_error(error)["out_of_memory"]


def test_other_errors_are_not_taken_for_it() -> None:
    assert not describe_error(RuntimeError("CUDA error: an illegal memory access"))["out_of_memory"]
