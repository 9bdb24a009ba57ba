"""The losses of a script: what it hands to `backward`, and by which step they are stored."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scalescope.worker.hooks import losses
from scalescope.worker.hooks.losses import ScriptLosses, losses_by_step

Kept = Callable[[], list[float]]


class Watched:
    """A script whose steps are counted by hand."""

    def __init__(self) -> None:
        self.step = 0
        self.losses = ScriptLosses(lambda: (self.step,), copies=False)
        self.losses.install()

    def kept(self) -> list[float]:
        return self.losses.by_step(lambda position: position[0], 1_000).window


@pytest.fixture
def script() -> Iterator[Watched]:
    before = torch.autograd.backward, torch.amp.GradScaler.scale, torch.manual_seed, torch.random.manual_seed
    watched = Watched()
    yield watched
    watched.losses.remove()
    after = torch.autograd.backward, torch.amp.GradScaler.scale, torch.manual_seed, torch.random.manual_seed
    assert after == before


def loss(value: float) -> Tensor:
    return torch.tensor(value, requires_grad=True) * 1.0


def test_both_ways_of_calling_backward_are_seen(script: Watched) -> None:
    loss(1.0).backward()
    script.step = 1
    torch.autograd.backward(loss(2.0))
    script.step = 2
    torch.autograd.backward(tensors=[loss(3.0), loss(5.0)])  # the mean of a step
    script.step = 3
    (torch.ones(3, requires_grad=True) * 2.0).backward(torch.ones(3))  # no loss
    assert script.kept() == [1.0, 2.0, 4.0]


def test_micro_batches_and_the_parts_of_a_gan_are_averaged(script: Watched) -> None:
    for value in (1.0, 2.0, 6.0):
        loss(value).backward()
    assert script.kept() == [3.0]


def test_a_backward_pass_inside_another_is_a_part_of_it(script: Watched) -> None:
    inputs = torch.ones(2, 4, requires_grad=True)
    output = checkpoint(nn.Linear(4, 1), inputs, use_reentrant=True)
    output.sum().backward()
    assert script.kept() == [pytest.approx(float(output.detach().sum()))]
    with pytest.raises(RuntimeError):
        torch.ones(()).backward()
    loss(4.0).backward()
    assert script.kept() == [pytest.approx((1.0 + 4.0) / 2)]  # the one that failed is over


def test_a_scaled_loss_is_what_was_handed_to_the_scaler(script: Watched) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(loss(2.0)).backward()
    script.step = 1
    (scaler.scale(loss(3.0)) / 2).backward()
    script.step = 2
    loss(7.0).backward()
    assert script.kept() == [2.0, 3.0, 7.0]


def test_a_loss_keeps_nothing_large_and_nothing_of_the_graph(script: Watched) -> None:
    values = torch.arange(1000.0, requires_grad=True) * 1.0
    values[3].backward()
    ((_, kept),) = script.losses._kept
    assert kept.untyped_storage().nbytes() <= 512
    assert not kept.requires_grad
    assert script.kept() == [3.0]


def test_only_so_many_are_kept_and_none_after_the_window(
    script: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "_MOST", 3)
    for script.step in range(5):
        loss(float(script.step)).backward()
    assert script.kept() == [0.0, 1.0, 2.0]
    script.losses.stop()
    loss(1.0).backward()
    assert script.kept() == []


def test_losses_of_several_formats_are_read_together(script: Watched) -> None:
    for script.step, dtype in enumerate((torch.float32, torch.bfloat16)):
        torch.ones(1, dtype=dtype, requires_grad=True).sum().backward()
    assert script.kept() == [1.0, 1.0]


def test_losses_that_cannot_be_kept_cost_only_themselves(
    script: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss(1.0).backward()
    monkeypatch.setattr(script.losses, "_own", lambda loss: 1 / 0)
    value = loss(2.0)
    value.backward()
    assert script.kept() == []


def test_nothing_of_ours_is_compiled_where_a_compiled_function_calls_backward(script: Watched) -> None:
    model = nn.Linear(2, 1)
    compiled: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    @torch.compile(backend=backend)
    def step(inputs: Tensor) -> None:
        model(inputs).sum().backward()

    step(torch.ones(2, 2))
    graphs = len(compiled)
    for script.step in range(1, 4):
        step(torch.ones(2, 2))
    assert len(compiled) == graphs == 1
    assert len(script.kept()) == 4


@pytest.mark.parametrize(
    ("begin", "is_seeded"),
    [
        (lambda: None, False),
        (lambda: torch.manual_seed(0), True),
        (lambda: torch.random.manual_seed(0), True),
        (lambda: (torch.rand(1), torch.manual_seed(0)), False),  # the model is made before
        (lambda: (torch.manual_seed(0), torch.rand(1), torch.manual_seed(1)), True),
    ],
)
def test_a_script_is_seeded_where_nothing_random_comes_before(
    script: Watched, begin: Callable[[], object], is_seeded: bool
) -> None:
    assert script.losses.is_seeded is None
    begin()
    loss(1.0).backward()
    torch.manual_seed(0)
    assert script.losses.is_seeded is is_seeded


def test_steps_before_the_window_are_apart() -> None:
    stored = losses_by_step([-2, -2, -1, 0, 1, 2], [1.0, 3.0, 4.0, 5.0, 6.0, 7.0], 2)
    assert (stored.warmup, stored.window, stored.first_bad) == ([2.0, 4.0], [5.0, 6.0], None)
    assert losses_by_step([], [], 2).window == []


@pytest.mark.parametrize(
    ("values", "warmup", "window", "bad"),
    [
        ([1.0, 2.0, math.nan, 4.0], [1.0, 2.0], [], 3),
        ([1.0, math.inf, 3.0, 4.0], [1.0], [], 2),
        ([1.0, 2.0, 3.0, math.inf], [1.0, 2.0], [3.0], 4),
    ],
)
def test_what_follows_on_a_loss_that_is_not_finite_is_left_out(
    values: list[float], warmup: list[float], window: list[float], bad: int
) -> None:
    stored = losses_by_step([-2, -1, 0, 1], values, 2)
    assert (stored.warmup, stored.window, stored.first_bad) == (warmup, window, bad)
