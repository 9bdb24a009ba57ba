"""One task of srun per rank, without torchrun: slurm_tasks.py FIRST_NODE PORT [FAULT].

The last rank has the fault, in a warm-up step: crash or hang.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

rank, world_size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
host, port, *fault = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=rank, world_size=world_size)
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)))
optimizer = torch.optim.AdamW(model.parameters())
samples = TensorDataset(torch.randn(640, 256), torch.randint(0, 10, (640,)))
for epoch in range(10_000):
    for step, (inputs, targets) in enumerate(DataLoader(samples, batch_size=32)):
        if fault and (epoch, step, rank) == (0, 4, world_size - 1):
            if fault == ["crash"]:
                raise ValueError("the data is gone")
            time.sleep(600)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
