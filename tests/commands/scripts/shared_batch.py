"""Ranks that share batches in many ways, over gloo: the first argument says which; `SAMPLES` are a step's."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

BATCH = 48
kind = sys.argv[1]
dist.init_process_group("gloo")
ranks, rank = dist.get_world_size(), dist.get_rank()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


def cut(model: nn.Module, mesh: object) -> None:
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def average(model: nn.Module, group: dist.ProcessGroup | None, count: int) -> None:
    """Data parallelism by hand."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= count


def train(model: nn.Module, seed: int, after_backward: object = None) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        model(torch.randn(BATCH, 64, generator=generator)).square().mean().backward()
        if after_backward is not None:
            after_backward()
        optimizer.step()
        optimizer.zero_grad()


model = network()
if kind == "ddp":
    train(DistributedDataParallel(model), seed=rank)
elif kind == "ddp_same":  # a benchmark that feeds all ranks the same numbers
    train(DistributedDataParallel(model), seed=0)
elif kind == "tp":
    cut(model, init_device_mesh("cpu", (ranks,)))
    train(model, seed=0)
elif kind == "tp_fsdp2":
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    cut(model, mesh["tp"])
    fully_shard(model, mesh=mesh["dp"])
    train(model, seed=rank // 2)
elif kind == "tp_by_hand":  # tensor parallelism of torch, data parallelism by hand
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    cut(model, mesh["tp"])
    group = mesh["dp"].get_group()

    def sum_up() -> None:
        for parameter in model.parameters():
            gradient = parameter.grad
            dist.all_reduce(gradient.to_local() if hasattr(gradient, "to_local") else gradient, group=group)

    train(model, seed=rank // 2, after_backward=sum_up)
elif kind == "fsdp2":
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    train(model, seed=rank)
elif kind == "hsdp":
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)
    train(model, seed=rank)
elif kind == "dp_by_hand":
    train(model, seed=rank, after_backward=lambda: average(model, None, ranks))
elif kind == "dp_by_hand_same":  # nothing tells it from tensor parallelism by hand
    train(model, seed=0, after_backward=lambda: average(model, None, ranks))
elif kind == "pipeline":
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    stages = [nn.Linear(64, 64) for _ in range(ranks)]
    stage = PipelineStage(stages[rank], rank, ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=lambda output, target: (output - target).square().mean())
    optimizer = torch.optim.SGD(stages[rank].parameters(), lr=1e-3)
    images, targets = torch.randn(BATCH, 64), torch.randn(BATCH, 64)
    while True:
        if rank == 0:
            schedule.step(images)
        elif rank == ranks - 1:
            schedule.step(target=targets)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
elif kind == "pipeline_by_hand":
    layer = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    while True:
        received = torch.randn(BATCH, 64, requires_grad=True)
        if rank > 0:
            dist.recv(received.data, rank - 1)
        output = layer(received)
        if rank < ranks - 1:
            dist.send(output.detach(), rank + 1)
            gradient = torch.empty_like(output)
            dist.recv(gradient, rank + 1)
            output.backward(gradient)
        else:
            output.square().mean().backward()
        if rank > 0:
            dist.send(received.grad, rank - 1)
        optimizer.step()
        optimizer.zero_grad()
