"""What a rank knows about who shares its batch."""

import inspect

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from scalescope.worker.hooks.ranks import (  # noqa: E402
    SendsToRanks,
    averaging_ranks,
    cut_ranks,
    input_hash,
)


def test_equal_inputs_have_equal_hashes() -> None:
    x = torch.randn(300, 300)
    assert input_hash(x) == input_hash(x.clone()) != input_hash(x + 1)
    assert input_hash(x) != input_hash(x.reshape(90_000))
    assert input_hash(x.bfloat16()) == input_hash(x.clone().bfloat16())
    assert input_hash(x.t()) is not None
    assert input_hash(None) is None


def test_a_model_by_itself_averages_over_nobody_and_is_whole() -> None:
    model = nn.Linear(2, 2)
    assert averaging_ranks([model]) is None
    assert cut_ranks(model.parameters()) is None


def test_methods_are_put_back_as_they_were() -> None:
    before = inspect.getattr_static(dist.ProcessGroup, "send")
    sends = SendsToRanks()
    sends.install()
    assert inspect.getattr_static(dist.ProcessGroup, "send") is not before
    sends.remove()
    assert inspect.getattr_static(dist.ProcessGroup, "send") is before
