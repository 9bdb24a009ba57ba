"""Steps: accumulation is one large batch, exchanges happen once a step, samples are counted."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scalescope.catalog.levers.accumulation import Accumulation
from scalescope.catalog.strategies.single import Single
from scalescope.errors import BadInput
from scalescope.results.result import HOST_PARTS
from scalescope.worker.levers.accumulation import apply as accumulate
from scalescope.worker.process.position import Position
from scalescope.worker.strategies.ddp import synchronise_first_step
from scalescope.worker.strategies.single import wrap
from scalescope.worker.training import step as step_module
from scalescope.worker.training.step import (
    Batch,
    Data,
    Step,
    Workload,
    plain_step,
)
from tests.builders.workers import CPU, run_steps


def _workload() -> Workload:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    return Workload(model=model, data=Data(), loss=nn.functional.cross_entropy)


def _sgd(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(parameters), lr=0.5)


def _step(workload: Workload, accumulation_steps: int = 1) -> Step:
    step = wrap(workload, Single(), CPU, "none", _sgd)
    return accumulate(step, Accumulation(accumulation_steps=accumulation_steps), CPU)


def _batches(*sizes: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 3, generator=generator), torch.randint(2, (size,), generator=generator))
        for size in sizes
    ]


def _run(step: Step, batches: list[Batch], count: int) -> Any:
    return run_steps(step, iter(batches), count, Position(None, 0, 1))


def test_accumulated_batches_train_as_one_large_batch() -> None:
    small = _batches(4, 4, 4, 4, 4, 4)
    large = [
        tuple(torch.cat([batch[part] for batch in three]) for part in (0, 1))
        for three in (small[:3], small[3:])
    ]
    accumulated, plain = _workload(), _workload()
    _run(_step(accumulated, 3), small, 2)
    _run(_step(plain), large, 2)
    for mine, other in zip(accumulated.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine, other)
    one_batch = _step(plain)
    assert accumulate(one_batch, Accumulation(accumulation_steps=1), CPU) == one_batch
    untrained = _workload()
    assert not torch.equal(next(plain.model.parameters()), next(untrained.model.parameters()))


class _Recorded:
    """A step that trains nothing and writes down what happens to it."""

    def __init__(self, accumulation_steps: int) -> None:
        self.happened: list[str] = []
        parameter = nn.Parameter(torch.zeros(1))
        self.step = Step(
            module=nn.ParameterList([parameter]),
            optimizer=torch.optim.SGD([parameter]),
            forward=self._forward,
            backward=lambda loss: self.happened.append("backward"),
            apply=lambda: self.happened.append("apply"),
            clear=lambda: self.happened.append("clear"),
            no_sync=self._no_sync,
            accumulation_steps=accumulation_steps,
        )

    def _forward(self, batch: Batch) -> Tensor:
        self.happened.append("forward")
        return torch.tensor(float(len(batch[0])))

    @contextlib.contextmanager
    def _no_sync(self) -> Iterator[None]:
        self.happened.append("no sync")
        yield
        self.happened.append("sync")


def test_all_batches_but_the_last_run_without_exchange() -> None:
    recorded = _Recorded(3)
    _run(recorded.step, _batches(1, 1, 1), 1)
    without_sync = ["no sync", "forward", "backward", "sync"]
    assert recorded.happened == [*without_sync, *without_sync, "forward", "backward", "apply", "clear"]


def test_every_sample_is_counted_and_a_step_has_one_loss() -> None:
    done = _run(_Recorded(2).step, _batches(4, 4, 4, 1), 2)
    assert done.samples == 13
    assert [loss.item() for loss in done.losses] == [4.0, 1.0]
    batches = [(step, loss.item()) for step, loss in done.batch_losses]
    assert batches == [(0, 4.0), (0, 4.0), (1, 4.0), (1, 1.0)]


def test_the_host_s_time_in_each_part_lies_within_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that advances by 1 at every reading: two batches and an update per step."""
    readings = itertools.count()
    monkeypatch.setattr(step_module.clocks, "perf_counter", lambda: float(next(readings)))
    done = _run(_Recorded(2).step, _batches(1, 1, 1, 1, 1, 1), 3)
    window_s = float(next(readings))
    assert done.host_s == {"input": 6.0, "forward": 6.0, "backward": 6.0, "optimizer": 3.0}
    assert set(done.host_s) == set(HOST_PARTS)
    assert sum(done.host_s.values()) <= window_s


@pytest.mark.parametrize("keep", [True, False])
def test_gradients_are_kept_where_they_live_in_buckets(keep: bool) -> None:
    workload = _workload()
    step = plain_step(workload, workload.model, _sgd(workload.model.parameters()), keep_gradients=keep)
    _run(step, _batches(2), 1)
    gradients = [parameter.grad for parameter in workload.model.parameters()]
    if keep:
        assert all(gradient is not None and not gradient.any() for gradient in gradients)
    else:
        assert gradients == [None] * 4


def test_a_mapping_is_the_models_arguments_and_the_loss_sees_all_of_it() -> None:
    class Named(nn.Module):
        def forward(self, *, first: Tensor, second: Tensor) -> Tensor:
            return first - second

    workload = Workload(model=Named(), data=Data(), loss=lambda output, batch: output * batch["first"])
    batch = {"first": torch.tensor([5.0]), "second": torch.tensor([2.0])}
    assert workload.loss_of(workload.model, batch).item() == 15.0


@pytest.mark.parametrize(
    ("batch", "shown"),
    [
        (torch.zeros(2, 3), "a Tensor"),
        ((torch.zeros(2),), "a tuple of 1"),
    ],
)
def test_a_batch_that_is_neither_a_pair_nor_a_mapping_is_refused(batch: Batch, shown: str) -> None:
    workload = _workload()
    with pytest.raises(BadInput, match=rf"^a batch is {shown}; expected \(inputs, targets\), "):
        workload.loss_of(workload.model, batch)


def test_a_mapping_that_the_model_does_not_take_is_refused_with_its_keys() -> None:
    class Whole(nn.Module):
        def forward(self, batch: Tensor) -> Tensor:
            return batch

    workload = Workload(model=Whole(), data=Data(), loss=lambda output, batch: output)
    with pytest.raises(BadInput, match=r"a mapping of image, label, which is passed as model\(\*\*batch\)"):
        workload.loss_of(workload.model, {"image": torch.zeros(1), "label": torch.zeros(1)})


def test_of_three_elements_the_last_is_the_targets_and_the_model_gets_the_others() -> None:
    class Two(nn.Module):
        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            return first - second

    workload = Workload(model=Two(), data=Data(), loss=lambda output, targets: output * targets)
    batch = (torch.tensor([5.0]), torch.tensor([2.0]), torch.tensor([7.0]))
    assert workload.loss_of(workload.model, batch).item() == 21.0
    assert workload.loss_of(workload.model, list(batch)).item() == 21.0


def test_a_step_may_take_fewer_batches_and_weighs_them_as_their_mean() -> None:
    """The last step of an epoch takes what is left of it."""
    whole, parts = _workload(), _workload()
    parts.model.load_state_dict(whole.model.state_dict())
    batches = _batches(3, 3)
    both = tuple(torch.cat(pair) for pair in zip(*batches, strict=True))
    run_steps(_step(whole), iter([both]), 1, Position(None, 0, 1))
    accumulated = accumulate(_step(parts), Accumulation(accumulation_steps=4), CPU)
    run_steps(accumulated, iter(batches), 1, Position(None, 0, 1), parts_of=lambda step: 2)
    for parameter, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(parameter, other)


def test_the_first_step_exchanges_every_batch_even_under_a_gradient_scaler() -> None:
    """The scaler of fp16 replaces `apply`; only `clear` is called in every step whatever the levers."""
    entered: list[str] = []

    @contextlib.contextmanager
    def no_sync() -> Iterator[None]:
        entered.append("no_sync")
        yield

    plain = dataclasses.replace(_step(_workload(), 3), no_sync=no_sync)
    scaled = dataclasses.replace(synchronise_first_step(plain), apply=lambda: None)
    _run(scaled, _batches(*[2] * 9), 3)
    assert len(entered) == 4  # two of three batches in the second and in the third step
