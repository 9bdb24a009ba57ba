"""Calls to the GPU's driver: which wait, which ask for memory, and which give it back."""

import pytest

from scalescope.results.traces.host_calls import allocates, releases, waits_for_gpu

WAITS = [
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cudaMemcpy",
    "cuMemcpyDtoH_v2",
]
ALLOCATES = ["cudaMalloc", "cudaHostAlloc", "cuMemCreate", "cuMemMap", "cudaMallocAsync", "cudaHostRegister"]
RELEASES = ["cudaFree", "cudaFreeHost", "cuMemFree_v2", "cuMemRelease", "cuMemUnmap", "cudaHostUnregister"]
NEITHER = [
    "cudaLaunchKernel",
    "cuLaunchKernelEx",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "cudaEventRecord",
    "cudaEventQuery",
    "cudaStreamWaitEvent",
    "cudaGraphLaunch",
    "cudaMemGetInfo",
]


@pytest.mark.parametrize("name", [*WAITS, *ALLOCATES, *RELEASES, *NEITHER])
def test_a_call_is_known_by_its_name(name: str) -> None:
    kinds = (waits_for_gpu(name), allocates(name), releases(name))
    assert kinds == (name in WAITS, name in ALLOCATES, name in RELEASES)
