"""A GAN: two models, two optimizers per step."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

if "RANK" in os.environ:
    dist.init_process_group("gloo")


def wrapped(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model) if dist.is_initialized() else model


generator = wrapped(nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 64)))
critic = wrapped(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1)))
of_generator = torch.optim.Adam(generator.parameters())
of_critic = torch.optim.Adam(critic.parameters())
cost = nn.functional.binary_cross_entropy_with_logits
loader = DataLoader(TensorDataset(torch.randn(4000, 64)), batch_size=20)
for _ in range(10_000):
    for (real,) in loader:
        generated = generator(torch.randn(20, 16)).detach()
        loss = cost(critic(real), torch.ones(20, 1)) + cost(critic(generated), torch.zeros(20, 1))
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        loss = cost(critic(generator(torch.randn(20, 16))), torch.ones(20, 1))
        of_generator.zero_grad()
        loss.backward()
        of_generator.step()
