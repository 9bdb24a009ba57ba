"""A workload of one's own: scalescope train --workload examples/own_model.py:build --world-size 2"""

import torch
from torch import nn


def build():
    """Return the model, its data and its loss; an optimizer may follow."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    samples = torch.randn(2000, 64)
    data = torch.utils.data.TensorDataset(samples, samples[:, :10].argmax(dim=1))
    return model, data, nn.functional.cross_entropy, torch.optim.AdamW(model.parameters(), lr=1e-3)
