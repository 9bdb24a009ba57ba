"""A workload of one's own for tests: a few images through a convolution, a batch norm and a linear layer."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset


def build() -> tuple[nn.Module, Any, Any]:
    """Model, data and loss."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5)
    )
    images = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return model, TensorDataset(images, torch.arange(32) % 5), nn.functional.cross_entropy
