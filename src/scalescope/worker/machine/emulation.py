"""The warning with which torch says that it emulates a format: the run's own note has said it before."""

import warnings

# oneDNN refuses a product in a format that the processor lacks; torch warns and computes it without oneDNN.
_WARNING = r"mkldnn_\w+ failed, switching to (?:BLAS gemm|baddbmm)"


def expect_emulation() -> None:
    """Ignore that one warning in this process from now on: every product would repeat it."""
    warnings.filterwarnings("ignore", message=_WARNING, category=UserWarning)
