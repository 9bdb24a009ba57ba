"""Makes the libraries below torch take what they take on first use, before anything is measured."""

import gc

import torch
from torch import nn

_WIDTH = 256  # wide enough that all threads of a CPU take part


def use_libraries(device: torch.device) -> None:
    """A small layer forward and backward: cuBLAS takes its workspaces, a CPU's threads get their stacks.

    Backward runs on a thread of its own on a GPU, with a workspace of its own.
    """
    layer = nn.Linear(_WIDTH, _WIDTH, device=device)
    square = torch.ones(_WIDTH, _WIDTH, device=device)
    layer(square @ square).sum().backward()  # a layer with bias and a bare product use different libraries
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    del layer, square
    gc.collect()
