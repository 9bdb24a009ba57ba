"""A Fabric loop for `fabric run`, whose flags choose the devices and the strategy."""

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric()
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
loader = fabric.setup_dataloaders(
    DataLoader(TensorDataset(torch.randn(4000, 128), torch.randint(0, 10, (4000,))), batch_size=16)
)
for _ in range(10_000):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
