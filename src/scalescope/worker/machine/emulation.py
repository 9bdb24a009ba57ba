"""The warning of torch about an emulated format; the run has its own note about it."""

import warnings

# oneDNN refuses a product in a format that the processor lacks; torch warns and computes it without oneDNN.
_WARNING = r"mkldnn_\w+ failed, switching to (?:BLAS gemm|baddbmm)"


def expect_emulation() -> None:
    """Ignore that warning in this process from now on: every product would repeat it."""
    warnings.filterwarnings("ignore", message=_WARNING, category=UserWarning)
