"""Running out of memory is recognised in all the words torch has for it, and nothing else is."""

import errno

import numpy as np
import pytest
import torch

from scalescope.worker.process.health.out_of_memory import is_out_of_memory

WORDINGS = {
    "the CPU allocator": "[enforce fail at alloc_cpu.cpp:128] err == 0. DefaultCPUAllocator: can't allocate "
    "memory: you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)",
    "the CPU allocator, older": "[enforce fail at CPUAllocator.cpp:64] . DefaultCPUAllocator: can't allocate "
    "memory: you tried to allocate 1178729664 bytes. Error code 12 (Cannot allocate memory)",
    "the CPU allocator with mimalloc": "[enforce fail at alloc_cpu.cpp:117] data. DefaultCPUAllocator: not "
    "enough memory: you tried to allocate 31850496000 bytes.",
    "a tensor's sizes": "Could not allocate memory to change Tensor SizesAndStrides!",
    "a mapped file": "unable to mmap 4096 bytes from file </torch_1_2>: Cannot allocate memory (12)",
    "a loader's process": "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback:\n"
    "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.",
    "C++": "std::bad_alloc",
    "C++ on Windows": "bad allocation",
    "CUDA's caching allocator": "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity "
    "of 139.72 GiB of which 3.00 MiB is free.",
    "a compiler that wraps it": "backend='inductor' raised:\nOutOfMemoryError: CUDA out of memory. Tried to "
    "allocate 2.00 GiB",
    "AMD's": "HIP out of memory. Tried to allocate 2.00 MiB",
    "CUDA": "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "CUDA's driver": "CUDA driver error: out of memory",
    "cuBLAS": "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN": "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN 9": "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cuSOLVER": "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "cuFFT": "cuFFT error: CUFFT_ALLOC_FAILED",
    "oneDNN": "could not create a memory object",
    "oneDNN, shorter": "could not create a memory",
    "oneDNN's status": "oneDNN: out of memory",
    "NCCL": "NCCL error in: ../NCCLUtils.hpp:275, unhandled cuda error (run with NCCL_DEBUG=INFO for "
    "details), NCCL version 2.27.3\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
    "Cuda failure 2 'out of memory'",
    "NCCL, older": "NCCL error: unhandled cuda error\nLast error:\nFailed to CUDA calloc 6291456 bytes",
}
OTHERS = {
    "an illegal access": "CUDA error: an illegal memory access was encountered",
    "an internal error of cuDNN": "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
    "an execution error of cuBLAS": "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED",
    "a memory format": "unsupported memory format option ChannelsLast",
    "a descriptor": "could not create a memory descriptor from blob",
    "a view": "Could not allocate memoryview object!",
    "shared memory of a kernel": "out of resource: shared memory, Required: 233472, Hardware limit: 232448",
    "a full /dev/shm": "unable to write to file </torch_1_2>: No space left on device (28)",
    "a negative size": "[enforce fail at alloc_cpu.cpp:107] nbytes >= 0. alloc_cpu() seems to have been "
    "called with negative number: 18446744071562067968",
    "overlapping tensors": "unsupported operation: some elements of the input tensor share a memory location",
    "a handler": "the out of memory handler was called without a device",
    "NCCL": "NCCL error: unhandled cuda error\nLast error:\nCuda failure 1 'invalid argument'",
    "a primitive": "could not create a primitive descriptor for a matmul primitive",
    "shapes": "mat1 and mat2 shapes cannot be multiplied (4x5 and 6x7)",
}


@pytest.mark.parametrize("text", WORDINGS.values(), ids=WORDINGS)
def test_every_wording_is_recognised(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_what_only_mentions_memory_is_not(text: str) -> None:
    assert not is_out_of_memory(RuntimeError(text))


def _numpy_error() -> BaseException:
    try:
        np.empty(1 << 60, dtype=np.uint8)
    except MemoryError as error:
        return error
    raise AssertionError("no system has that much")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("in any words"),
        torch.cuda.OutOfMemoryError("in any words"),
        _numpy_error(),
        OSError(errno.ENOMEM, "in any words"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_some_error_types_are_recognised_without_their_message(error: BaseException) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "Cannot allocate memory"), ValueError("CUDA out of memory. Tried to")]
)
def test_other_types_are_not_read(error: BaseException) -> None:
    assert not is_out_of_memory(error)


def test_what_torch_itself_raises_is_recognised() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(raised.value)


@pytest.mark.parametrize("text", ["could not create a primitive", "could not execute a primitive"])
def test_ambiguous_messages_count_only_under_a_limit(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text), under_limit=True)
    assert not is_out_of_memory(RuntimeError(text))
