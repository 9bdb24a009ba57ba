"""Running out of memory is recognised in all the words torch has for it, and nothing else is."""

import errno

import pytest
import torch

from scalescope.worker.process.health import is_out_of_memory

_WORDINGS = (
    "[enforce fail at alloc_cpu.cpp:128] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to",
    "[enforce fail at alloc_cpu.cpp:117] data. DefaultCPUAllocator: not enough memory: you tried to allocate",
    "Could not allocate memory to change Tensor SizesAndStrides!",
    "unable to mmap 4096 bytes from file </torch_1_2>: Cannot allocate memory (12)",
    "Caught RuntimeError in DataLoader worker process 0.\nRuntimeError: DefaultCPUAllocator: can't allocate "
    "memory: you tried to allocate 8 bytes.",
    "std::bad_alloc",
    "bad allocation",  # C++ on Windows
    "backend='inductor' raised:\nOutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "HIP out of memory. Tried to allocate 2.00 MiB",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "CUDA driver error: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "cuFFT error: CUFFT_ALLOC_FAILED",
    "could not create a memory object",  # oneDNN
    "could not create a memory",
    "oneDNN: out of memory",
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
    "NCCL error: unhandled cuda error\nLast error:\nFailed to CUDA calloc 6291456 bytes",
)
_OTHERS = (
    "CUDA error: an illegal memory access was encountered",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED",
    "unsupported memory format option ChannelsLast",
    "could not create a memory descriptor from blob",
    "Could not allocate memoryview object!",
    "out of resource: shared memory, Required: 233472, Hardware limit: 232448",
    "unable to write to file </torch_1_2>: No space left on device (28)",
    "the out of memory handler was called without a device",
    "NCCL error: unhandled cuda error\nLast error:\nCuda failure 1 'invalid argument'",
    "could not create a primitive descriptor for a matmul primitive",
)


@pytest.mark.parametrize("text", _WORDINGS)
def test_every_wording_is_recognised(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))
    assert not is_out_of_memory(ValueError(text))  # other types are not read


@pytest.mark.parametrize("text", _OTHERS)
def test_what_only_mentions_memory_is_not(text: str) -> None:
    assert not is_out_of_memory(RuntimeError(text))


def test_some_error_types_are_recognised_without_their_message() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("in any words"))
    assert is_out_of_memory(OSError(errno.ENOMEM, "in any words"))
    assert not is_out_of_memory(OSError(errno.ENOSPC, "Cannot allocate memory"))


def test_what_torch_itself_raises_is_recognised() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(raised.value)


@pytest.mark.parametrize("text", ["could not create a primitive", "could not execute a primitive"])
def test_ambiguous_messages_count_only_under_a_limit(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text), under_limit=True)
    assert not is_out_of_memory(RuntimeError(text))
