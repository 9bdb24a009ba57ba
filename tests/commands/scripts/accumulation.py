"""Four micro-batches per step with no_sync, validation now and then, tokens as input, no DataLoader."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if "RANK" in os.environ:
    dist.init_process_group("gloo")
model: nn.Module = nn.Sequential(nn.Embedding(100, 32), nn.Flatten(), nn.Linear(32 * 16, 100))
if dist.is_initialized():
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1_000_000):
    for part in range(4):
        last = part == 3 or not isinstance(model, DistributedDataParallel)
        with contextlib.nullcontext() if last else model.no_sync():
            model(torch.randint(0, 100, (8, 16))).logsumexp(1).mean().backward()
    if step % 20 == 0:
        with torch.no_grad():
            model(torch.randint(0, 100, (8, 16)))
    optimizer.step()
    optimizer.zero_grad()
