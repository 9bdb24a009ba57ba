"""Paced models: gradients come in their order, are new every time, and survive whoever writes into them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scalescope.worker.training import stand_in
from scalescope.worker.training.stand_in import Pace, PacedModel, SleepingOptimizer


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


def _are_one(model: nn.Module) -> bool:
    gradients = _gradients(model)
    return len(gradients) == 4 and all(torch.equal(each, torch.ones_like(each)) for each in gradients)


def test_the_loss_and_every_gradient_are_one_and_follow_what_the_loss_is_multiplied_by() -> None:
    model = _model()
    loss = model("whatever", mask=None)
    loss.backward()
    assert loss.item() == 1.0 and _are_one(model)
    model = _model()
    for _ in range(4):
        (model() / 4).backward()
    assert _are_one(model)


@pytest.mark.parametrize("forget", [True, False], ids=["set to none", "cleared in place"])
def test_repeated_steps_keep_the_gradient_whatever_is_written_into_it(forget: bool) -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model().backward()
        assert _are_one(model)
        gradients = _gradients(model)
        for number, gradient in enumerate(gradients):
            gradient.mul_(number + 2)  # one that shared memory would change the others too
        assert [float(gradient.sum() / gradient.numel()) for gradient in gradients] == [2.0, 3.0, 4.0, 5.0]
        optimizer.step()
        optimizer.zero_grad(set_to_none=forget)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("views", "forget", "static"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_ddp_averages_the_same_gradient_every_step(views: bool, forget: bool, static: bool) -> None:
    model = _model()
    wrapped = DistributedDataParallel(
        model, gradient_as_bucket_view=views, static_graph=static, bucket_cap_mb=1e-5
    )
    for _ in range(4):
        wrapped().backward()
        assert _are_one(model)
        wrapped.zero_grad(set_to_none=forget)


@pytest.mark.parametrize("names", [("last", "first", "shift", "scale"), ("first", "last")])
def test_gradients_come_from_the_end_of_the_order_and_only_for_what_is_in_it(names: tuple[str, ...]) -> None:
    model = _model(*names)
    came: list[str] = []
    for name, parameter in model.body.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: came.append(name))
    model().backward()
    assert came == list(reversed(names))


def test_a_copy_and_replaced_parameters_get_gradients_of_their_own_and_their_type() -> None:
    model = _model()
    copied = copy.deepcopy(model)
    copied().backward()
    assert (len(_gradients(copied)), len(_gradients(model))) == (4, 0)
    model.body.last = nn.Parameter(torch.zeros(7, dtype=torch.bfloat16))
    model().backward()
    gradient = model.body.last.grad
    assert gradient is not None and (gradient.shape, gradient.dtype) == ((7,), torch.bfloat16)


class _FakeTime:
    """A clock that only sleeping moves, and what was slept to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(stand_in.clocks, "perf_counter", lambda: self.now)
        monkeypatch.setattr(stand_in.clocks, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_step_takes_the_time_of_its_pace_and_what_comes_late_is_not_added_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = _Body()
    order = [body.first, body.scale, body.last]
    model = PacedModel(body, order, Pace(forward_s=1.0, gradient_ready_s=(0.5, 0.75, 2.0)))
    clock = _FakeTime(monkeypatch)
    came: list[float] = []

    def arrive(_: torch.Tensor) -> None:
        came.append(clock.now)
        clock.now += 0.1  # whoever takes it needs some time

    for parameter in order:
        parameter.register_post_accumulate_grad_hook(arrive)
    loss = model()
    assert clock.now == pytest.approx(101.0)
    clock.now = 200.0  # the backward pass has a beginning of its own
    loss.backward()
    assert came == pytest.approx([200.5, 200.75, 202.0])
    SleepingOptimizer(iter(order), 3.0).step()
    assert clock.now == pytest.approx(205.1)


def test_the_sleeping_optimizer_leaves_parameters_alone_and_clears_gradients() -> None:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer = SleepingOptimizer(iter([parameter]), 0.0)
    optimizer.step()
    optimizer.zero_grad()
    assert torch.equal(parameter, torch.ones(2))
    assert parameter.grad is None
