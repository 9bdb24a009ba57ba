"""ZeroRedundancyOptimizer without its broadcasts: ranks update their part and keep the rest as it was."""

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from scalescope.errors import BadInput

_BROADCAST = "_sync_params"  # private, and the last part of `step`


def keep_update_local(optimizer: ZeroRedundancyOptimizer) -> None:
    """Let the optimizer send no parameters; refuse where torch does that in another way."""
    if not hasattr(optimizer, _BROADCAST):
        raise BadInput(
            f"ZeroRedundancyOptimizer of torch {torch.__version__} cannot update without communication: "
            f"it has no {_BROADCAST}"
        )
    setattr(optimizer, _BROADCAST, lambda: None)
