"""What kernels and calls to the GPU's driver do, by their names in a trace."""

import functools
import re

# ---- What the host asks of the GPU's driver, by the names of the calls in a trace


_WAITS = re.compile(r"(Stream|Device|Event|Ctx)Synchronize|^cu(da)?Memcpy(2D|3D|DtoH|HtoD)?(_v\d)?$")
_ALLOCATES = re.compile(r"Malloc|MemAlloc|MemCreate|HostAlloc|MemMap|HostRegister")
_RELEASES = re.compile(r"(cuda|cu)(Mem)?Free|MemRelease|MemUnmap|HostUnregister")


@functools.lru_cache(maxsize=4096)
def waits_for_gpu(name: str) -> bool:
    """Whether a call returns only when the GPU has done what was asked of it before."""
    return _WAITS.search(name) is not None


@functools.lru_cache(maxsize=4096)
def allocates(name: str) -> bool:
    """Whether a call asks the driver for memory."""
    return _ALLOCATES.search(name) is not None and not releases(name)


@functools.lru_cache(maxsize=4096)
def releases(name: str) -> bool:
    """Whether a call gives memory back to the driver, which waits for the GPU."""
    return _RELEASES.search(name) is not None


# ---- What a kernel computes, by its name: names are all that a trace has. They change with libraries, so
# what is not recognised counts as neither


_PRODUCT = re.compile(
    r"gemm|gemv|cutlass|cublas|xmma|nvjet|wgmma|s\d{3,5}_|fmha|flash|sdpa|attention|triton_tem|splitk|"
    r"conv|fprop|dgrad|wgrad|winograd",
    re.IGNORECASE,
)
_CONVOLUTION = re.compile(r"conv|fprop|dgrad|wgrad|winograd", re.IGNORECASE)
_ATTENTION = re.compile(r"sdpa|flash|fmha|attention", re.IGNORECASE)
_MATRIX_UNIT = re.compile(
    r"tensorop|tensor\d|1688|16816|884|gmma|nvjet|tf32|f16|e4m3|flash|triton_tem", re.IGNORECASE
)
_PLAIN_UNIT = re.compile(r"simt|_sgemm|sgemm_|ffma|f32f32_f32f32", re.IGNORECASE)
_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|convertTensor", re.IGNORECASE)
_CONVERSION = re.compile(r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|convert", re.IGNORECASE)
_ELEMENTWISE = re.compile(r"elementwise|triton_poi", re.IGNORECASE)


def is_product(name: str) -> bool:
    """A matrix product, a convolution, or attention."""
    return _PRODUCT.search(name) is not None and not is_layout(name) and not is_elementwise(name)


def is_convolution(name: str) -> bool:
    """A convolution; kernels of attention have passes of the same names."""
    if is_elementwise(name) or _ATTENTION.search(name) is not None:
        return False
    return _CONVOLUTION.search(_CONVERSION.sub("", name)) is not None


def uses_matrix_units(name: str) -> bool:
    """A product on the units that multiply small matrices of short numbers."""
    return is_product(name) and _MATRIX_UNIT.search(name) is not None and _PLAIN_UNIT.search(name) is None


def is_layout(name: str) -> bool:
    """Reorders images between NCHW and NHWC."""
    return _LAYOUT.search(name) is not None


def is_elementwise(name: str) -> bool:
    """Computes element by element: memory bandwidth decides its speed."""
    return _ELEMENTWISE.search(name) is not None
