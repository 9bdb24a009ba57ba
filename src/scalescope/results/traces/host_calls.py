"""What the host asks of the GPU's driver, by the names of the calls in a trace."""

import re

_WAITS = re.compile(r"(Stream|Device|Event|Ctx)Synchronize|^cu(da)?Memcpy(2D|3D|DtoH|HtoD)?(_v\d)?$")
_ALLOCATES = re.compile(r"Malloc|MemAlloc|MemCreate|HostAlloc|MemMap|HostRegister")
_RELEASES = re.compile(r"(cuda|cu)(Mem)?Free|MemRelease|MemUnmap|HostUnregister")


def waits_for_gpu(name: str) -> bool:
    """Whether a call returns only when the GPU has done what was asked of it before."""
    return _WAITS.search(name) is not None


def allocates(name: str) -> bool:
    """Whether a call asks the driver for memory."""
    return _ALLOCATES.search(name) is not None and not releases(name)


def releases(name: str) -> bool:
    """Whether a call gives memory back to the driver, which waits for the GPU."""
    return _RELEASES.search(name) is not None
