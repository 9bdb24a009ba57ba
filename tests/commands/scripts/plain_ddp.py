"""A plain script: DDP where there are ranks, a DataLoader, clipping, a scheduler, checkpoints."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--width", type=int, default=512)
options = parser.parse_args()

if "RANK" in os.environ:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model: nn.Module = nn.Sequential(
    nn.Linear(256, options.width),
    nn.ReLU(),
    nn.Linear(options.width, options.width),
    nn.Linear(options.width, 10),
)
if dist.is_initialized():
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
samples = TensorDataset(
    torch.randn(40 * options.batch_size, 256), torch.randint(0, 10, (40 * options.batch_size,))
)
for _ in range(10_000):
    for inputs, targets in DataLoader(samples, batch_size=options.batch_size):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    torch.save(model.state_dict(), os.path.join(tempfile.gettempdir(), "never-written.pt"))
