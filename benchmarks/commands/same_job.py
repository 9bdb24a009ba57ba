"""One training job in three forms: `build` and `job` for scalescope, and a script: `python same_job.py`."""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

BATCH, WIDTH, SAMPLES = 64, int(os.environ.get("SAME_JOB_WIDTH", "768")), 64 * 200


def parts() -> tuple[nn.Module, TensorDataset, torch.optim.Optimizer]:
    """Model, samples and optimizer, the same in all forms."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
    )
    samples = TensorDataset(torch.randn(SAMPLES, WIDTH), torch.randint(0, 10, (SAMPLES,)))
    return model, samples, torch.optim.SGD(model.parameters(), lr=0.01)


def build() -> tuple[nn.Module, TensorDataset, object, torch.optim.Optimizer]:
    """As a workload of model, data and loss."""
    model, samples, optimizer = parts()
    return model, samples, functional.cross_entropy, optimizer


def step(model: nn.Module, batch: tuple[Tensor, Tensor], optimizer: torch.optim.Optimizer) -> Tensor:
    """The whole step."""
    inputs, targets = batch
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def job() -> object:
    """As a workload that keeps its own step."""
    import scalescope

    model, samples, optimizer = parts()
    return scalescope.Job(model=model, data=samples, optimizer=optimizer, step=step)


def main() -> None:
    """As a script."""
    device = torch.device(os.environ.get("SAME_JOB_DEVICE", "cpu"))
    model, samples, optimizer = parts()
    model.to(device)
    sampler = None
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
        sampler = DistributedSampler(samples)
    while True:
        for batch in DataLoader(
            samples, batch_size=BATCH, sampler=sampler, shuffle=sampler is None, drop_last=True
        ):
            inputs, targets = batch
            step(model, (inputs.to(device), targets.to(device)), optimizer)


if __name__ == "__main__":
    main()
