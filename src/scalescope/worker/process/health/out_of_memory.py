"""Whether an error means out of memory: by its type, or by the message of torch and its libraries."""

import errno
import re
import sys

# Errors of libraries below torch are plain RuntimeErrors, so only the message is left. Each pattern is a
# whole phrase: a message that only mentions memory does not match.
_PHRASES = (
    r"(?i:\b(?:can't|cannot|could not|failed to|unable to) allocate memory\b)",  # C10's allocator, ENOMEM
    r"DefaultCPUAllocator: not enough memory",  # where it is built with mimalloc, and on Windows
    r"std::bad_alloc\b",
    r"\bbad allocation\b",
    r"(?i:\b(?:CUDA|HIP|XPU|MPS backend|C10) out of memory\b)",
    r"(?i:\berror: out of memory\b)",  # of the CUDA runtime and driver
    r"'out of memory'",  # as NCCL quotes CUDA
    r"(?im:\bout of memory\.?$)",  # oneDNN's status, after the name of what it was doing
    r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|SPARSE)_STATUS_ALLOC_FAILED\b",
    r"\bCUFFT_ALLOC_FAILED\b",
    # cuDNN 9 reports a failed allocation as one of its internal errors; the others are not about memory.
    r"\bCUDNN_STATUS_INTERNAL_ERROR_(?:HOST|DEVICE)_ALLOCATION_FAILED\b",
    r"\bFailed to CUDA (?:host )?(?:calloc|malloc|alloc)\b",  # NCCL
    r"\bcould not create a memory(?: object)?(?:$|[^\w ])",  # oneDNN; a memory *descriptor* is something else
)
_PATTERN = re.compile("|".join(_PHRASES))
# oneDNN reports this for a primitive without memory for its buffers, but also for an unsupported one.
_AMBIGUOUS = re.compile(r"\bcould not (?:create|execute) a primitive\b")


def is_out_of_memory(error: BaseException, *, under_limit: bool = False) -> bool:
    """Whether `error` means that the host or the device is out of memory.

    `under_limit`: the process has a memory limit, so that ambiguous messages count too.
    """
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return bool(_PATTERN.search(text) or (under_limit and _AMBIGUOUS.search(text)))
