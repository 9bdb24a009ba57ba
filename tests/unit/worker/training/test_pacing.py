"""Paced models: gradients come in their order, are new every time, and survive whoever writes into them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scalescope.worker.training import pacing
from scalescope.worker.training.pacing import Pace, PacedModel, SleepingOptimizer


class _Body(nn.Module):
    """Parameters of several shapes, one of them with a single element."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(3, 2))
        self.scale = nn.Parameter(torch.zeros(1))
        self.last = nn.Parameter(torch.zeros(5))
        self.shift = nn.Parameter(torch.zeros(()))


def _model(*names: str) -> PacedModel:
    body = _Body()
    order = [body.get_parameter(name) for name in names or ("first", "scale", "last", "shift")]
    return PacedModel(body, order, Pace(forward_s=0.0, gradient_ready_s=(0.0,) * len(order)))


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_the_loss_and_every_gradient_are_one() -> None:
    model = _model()
    loss = model("whatever", mask=None)
    loss.backward()
    assert loss.item() == 1.0
    assert len(_gradients(model)) == 4
    assert all(torch.equal(gradient, torch.ones_like(gradient)) for gradient in _gradients(model))


def test_gradients_follow_what_the_loss_is_multiplied_by() -> None:
    model = _model()
    for _ in range(4):
        (model() / 4).backward()
    assert all(torch.equal(gradient, torch.ones_like(gradient)) for gradient in _gradients(model))


@pytest.mark.parametrize("forget", [True, False], ids=["set to none", "cleared in place"])
def test_repeated_steps_keep_the_gradient_whatever_is_written_into_it(forget: bool) -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model().backward()
        gradients = _gradients(model)
        assert len(gradients) == 4
        assert all(torch.equal(gradient, torch.ones_like(gradient)) for gradient in gradients)
        for number, gradient in enumerate(gradients):
            gradient.mul_(number + 2)  # one that shared memory would change the others too
        assert [float(gradient.sum() / gradient.numel()) for gradient in gradients] == [2.0, 3.0, 4.0, 5.0]
        optimizer.step()
        optimizer.zero_grad(set_to_none=forget)


@pytest.mark.parametrize(
    ("views", "forget", "static"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_ddp_averages_the_same_gradient_every_step(
    alone: None, views: bool, forget: bool, static: bool
) -> None:
    model = _model()
    wrapped = DistributedDataParallel(
        model, gradient_as_bucket_view=views, static_graph=static, bucket_cap_mb=1e-5
    )
    for _ in range(4):
        wrapped().backward()
        assert all(torch.equal(gradient, torch.ones_like(gradient)) for gradient in _gradients(model))
        wrapped.zero_grad(set_to_none=forget)


def test_gradients_come_from_the_end_of_the_order() -> None:
    names = ("last", "first", "shift", "scale")
    model = _model(*names)
    came: list[str] = []
    for name, parameter in model.body.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: came.append(name))
    model().backward()
    assert came == list(reversed(names))


def test_a_parameter_that_was_not_used_gets_no_gradient() -> None:
    model = _model("first", "last")
    model().backward()
    assert [name for name, parameter in model.body.named_parameters() if parameter.grad is not None] == [
        "first",
        "last",
    ]


def test_a_copy_and_replaced_parameters_get_gradients_of_their_own() -> None:
    model = _model()
    copied = copy.deepcopy(model)
    copied().backward()
    assert (len(_gradients(copied)), len(_gradients(model))) == (4, 0)
    model.body.last = nn.Parameter(torch.zeros(7))
    model().backward()
    assert model.body.last.grad is not None and model.body.last.grad.shape == (7,)
    half = _model().to(torch.bfloat16)
    half().backward()
    assert {gradient.dtype for gradient in _gradients(half)} == {torch.bfloat16}


class _FakeTime:
    """A clock that only sleeping moves, and what was slept to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(pacing.clocks, "perf_counter", lambda: self.now)
        monkeypatch.setattr(pacing.clocks, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_step_takes_the_time_of_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    body = _Body()
    order = [body.first, body.scale, body.last]
    model = PacedModel(body, order, Pace(forward_s=1.0, gradient_ready_s=(0.5, 0.75, 2.0)))
    clock = _FakeTime(monkeypatch)
    came: list[float] = []
    for parameter in order:
        parameter.register_post_accumulate_grad_hook(lambda _: came.append(clock.now))
    loss = model()
    assert clock.now == pytest.approx(101.0)
    clock.now = 200.0  # the backward pass has a beginning of its own
    loss.backward()
    assert came == pytest.approx([200.5, 200.75, 202.0])
    SleepingOptimizer(iter(order), 3.0).step()
    assert clock.now == pytest.approx(205.0)


def test_what_comes_late_is_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    body = _Body()
    model = PacedModel(body, [body.first, body.last], Pace(forward_s=0.0, gradient_ready_s=(0.5, 1.0)))
    clock = _FakeTime(monkeypatch)

    def delay(_: torch.Tensor) -> None:
        clock.now += 0.3

    body.last.register_post_accumulate_grad_hook(delay)
    model().backward()
    assert clock.now == pytest.approx(101.0)


def test_the_sleeping_optimizer_leaves_parameters_alone_and_clears_gradients() -> None:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer = SleepingOptimizer(iter([parameter]), 0.0)
    optimizer.step()
    optimizer.zero_grad()
    assert torch.equal(parameter, torch.ones(2))
    assert parameter.grad is None
