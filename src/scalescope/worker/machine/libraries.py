"""Makes the libraries below torch allocate what they need on first use, before anything is measured."""

import gc

import torch
from torch import nn

_WIDTH = 256  # wide enough for all threads of a CPU


def use_libraries(device: torch.device) -> None:
    """Run a small layer forward and backward: cuBLAS allocates workspaces, CPU threads get their stacks.

    On a GPU, backward runs on a separate thread with a separate workspace.
    """
    layer = nn.Linear(_WIDTH, _WIDTH, device=device)
    square = torch.ones(_WIDTH, _WIDTH, device=device)
    layer(square @ square).sum().backward()  # a layer with bias and a bare product use different libraries
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    del layer, square
    gc.collect()
