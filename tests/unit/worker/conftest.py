"""Shared by the tests of workers."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors are tiny here: several threads would only wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process only, which DDP requires."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
