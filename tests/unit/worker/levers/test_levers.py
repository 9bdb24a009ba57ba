"""Levers on one rank of the CPU: the numbers they keep, and where they are refused."""

import functools
import os
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scalescope.catalog.levers.fusion import Fusion
from scalescope.catalog.levers.kernels import Kernels
from scalescope.catalog.levers.memory_format import MemoryFormat
from scalescope.catalog.levers.precision import Precision
from scalescope.catalog.training import Training
from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.expand import expand
from scalescope.worker.levers import fusion, kernels, memory_format, precision
from scalescope.worker.training.assembly import build_step, optimizer_factory
from scalescope.worker.training.step import Data, Step, Workload, plain_step
from tests.builders.requests import ask, with_gpus
from tests.builders.workers import CPU, options
from tests.simulated.launcher import TWO_CORES

_STEPS = 4


class SmallConvolutions(nn.Module):
    """Two convolutions and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(8, 4)

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = torch.relu(self.second(torch.relu(self.first(pictures))))
        return self.last(hidden.mean(dim=(2, 3)))


class SmallAttention(nn.Module):
    """One attention over a short sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 4)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.first(words).unsqueeze(1)
        mixed = nn.functional.scaled_dot_product_attention(hidden, hidden, hidden)
        return self.last(mixed.mean(dim=(1, 2)))


def workload(kind: type[nn.Module] = SmallConvolutions) -> Workload:
    torch.manual_seed(0)
    return Workload(model=kind(), data=Data(), loss=nn.functional.cross_entropy)


def batch(kind: type[nn.Module] = SmallConvolutions) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    shape = (6, 3, 8, 8) if kind is SmallConvolutions else (6, 5, 8)
    return torch.randn(shape, generator=draw), torch.randint(4, (6,), generator=draw)


def step_of(trained: Workload) -> Step:
    return plain_step(trained, trained.model, torch.optim.SGD(trained.model.parameters(), lr=0.2))


def losses(step: Step, given: Any) -> list[float]:
    values = []
    for _ in range(_STEPS):
        loss = step.forward(given)
        step.backward(loss)
        step.apply()
        step.clear()
        values.append(float(loss.detach()))
    return values


def plain(kind: type[nn.Module] = SmallConvolutions) -> list[float]:
    return losses(step_of(workload(kind)), batch(kind))


def test_channels_last_stores_pictures_and_filters_otherwise_and_keeps_the_numbers() -> None:
    states: list[bool] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        states.append(inputs[0].is_contiguous(memory_format=torch.channels_last))

    chosen = options(MemoryFormat, memory_format="channels_last")
    prepared = memory_format.prepare(workload(), chosen, CPU)
    convolution = prepared.model.get_submodule("second")
    convolution.register_forward_pre_hook(look)
    weight = prepared.model.get_parameter("second.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    step = memory_format.apply(step_of(prepared), chosen, CPU)
    assert losses(step, batch()) == pytest.approx(plain(), rel=1e-5)
    assert states == [True] * _STEPS
    assert weight.is_contiguous(memory_format=torch.channels_last)  # the optimizer kept it so


def test_channels_last_leaves_what_is_no_picture_alone() -> None:
    calls: list[Any] = []
    chosen = options(MemoryFormat, memory_format="channels_last")
    step = step_of(workload())
    recording = Step(
        module=step.module,
        optimizer=step.optimizer,
        forward=lambda given: calls.append(given) or torch.zeros(()),
        backward=step.backward,
        apply=step.apply,
        clear=step.clear,
    )
    given = {"picture": torch.zeros(2, 3, 4, 4), "class": torch.zeros(2), "name": "text"}
    memory_format.apply(recording, chosen, CPU).forward(given)
    (recorded,) = calls
    assert isinstance(recorded, Mapping)
    assert recorded["class"] is given["class"]
    assert recorded["name"] == "text"
    assert recorded["picture"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("lever", [memory_format, fusion, kernels, precision])
def test_a_lever_at_its_default_changes_nothing(lever: Any) -> None:
    card = {memory_format: MemoryFormat, fusion: Fusion, kernels: Kernels, precision: Precision}[lever]
    step, other = step_of(workload()), workload()
    assert lever.apply(step, options(card), CPU) is step
    if hasattr(lever, "prepare"):
        assert lever.prepare(other, options(card), CPU) is other


def test_torchscript_trains_the_same_parameters_to_the_same_loss() -> None:
    scripted = fusion.prepare(workload(), options(Fusion, jit=True), CPU)
    assert isinstance(scripted.model, torch.jit.ScriptModule)
    assert losses(step_of(scripted), batch()) == pytest.approx(plain(), rel=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler imports TorchScript
def test_compiled_steps_keep_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as in a real run; the backend makes no C++, which takes a minute on two cores."""
    modes: list[str | None] = []
    real = torch.compile

    def traced(function: Any, *, mode: str | None) -> Any:
        modes.append(mode)
        return real(function, backend="aot_eager")

    monkeypatch.setattr(torch, "compile", traced)
    for mode in ("default", "max-autotune"):
        step = fusion.apply(step_of(workload()), options(Fusion, compile=mode), CPU)
    assert losses(step, batch()) == pytest.approx(plain(), rel=1e-5)
    assert modes == [None, "max-autotune"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(
    "compile" not in os.environ.get("SCALESCOPE_REQUIRE", ""),
    reason="the C++ compiler takes a minute here; SCALESCOPE_REQUIRE=compile runs it",
)
def test_the_real_compiler_keeps_the_numbers() -> None:
    step = fusion.apply(step_of(workload()), options(Fusion, compile="default"), CPU)
    assert losses(step, batch()) == pytest.approx(plain(), rel=1e-4)


@pytest.mark.parametrize("backend", ["flash", "math"])
def test_the_attention_kernel_is_the_one_asked_for_and_keeps_the_numbers(backend: str) -> None:
    before = torch.backends.cuda.math_sdp_enabled()
    step = kernels.apply(step_of(workload(SmallAttention)), options(Kernels, attention=backend), CPU)
    assert losses(step, batch(SmallAttention)) == pytest.approx(plain(SmallAttention), rel=1e-5)
    assert torch.backends.cuda.math_sdp_enabled() is before  # it holds only inside the step


@pytest.mark.parametrize("asked", [True, False])
def test_cudnn_tries_its_kernels_only_where_asked(asked: bool) -> None:
    kernels.apply(step_of(workload()), options(Kernels, cudnn_benchmark=asked), CPU)
    assert torch.backends.cudnn.benchmark is asked


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_fused_optimizer_ends_with_the_parameters_of_the_plain_one(kind: str) -> None:
    ends = []
    for fused in (False, True):
        trained = workload()
        make = optimizer_factory(_training(optimizer=kind, fused_optimizer=fused))
        optimizer = make(trained.model.parameters())
        assert bool(optimizer.defaults["fused"]) is fused
        losses(plain_step(trained, trained.model, optimizer), batch())
        ends.append(torch.cat([parameter.detach().flatten() for parameter in trained.model.parameters()]))
    assert torch.allclose(ends[0], ends[1], rtol=1e-4, atol=1e-6)


def _training(**changes: Any) -> Training:
    return options(Training, **changes)


def test_levers_are_put_together_in_one_step() -> None:
    """All that the CPU can do at once: prepared before the strategy, applied after it."""
    settings = {
        "memory_format": "channels_last",
        "precision": "bf16",
        "fused_optimizer": "true",
        "jit": "true",
    }
    (trial,) = expand(ask(workload="cnn", **settings), TWO_CORES).trials
    step = build_step(trial, workload(), CPU)
    assert isinstance(step.module, torch.jit.ScriptModule)
    assert step.optimizer.defaults["fused"] is True
    values = losses(step, batch())
    assert values == pytest.approx(losses(_slow(), batch()), rel=0.02)
    assert values[-1] < values[0]


@functools.cache
def _slow() -> Step:
    (trial,) = expand(ask(workload="cnn"), TWO_CORES).trials
    return build_step(trial, workload(), CPU)


@pytest.mark.parametrize("name", ["pin_memory", "non_blocking", "prefetch_stream"])
def test_copies_to_a_gpu_are_refused_on_the_cpu(name: str) -> None:
    with pytest.raises(CannotRun, match=rf"^{name} requires a GPU"):
        expand(ask(num_workers="2", **{name: "true"}), TWO_CORES)
    with pytest.raises(BadInput, match=rf"^{name} requires a data loader, .*; add --num-workers 2"):
        expand(ask(**{name: "true"}), with_gpus(1))
    (trial,) = expand(ask(num_workers="0", **{name: "true"}), with_gpus(1)).trials
    assert trial.settings[name] is True


@pytest.mark.parametrize(
    ("backend", "gpus", "message"),
    [
        ("efficient", 0, "requires a CUDA GPU; flash and math work"),
        ("cudnn", 0, "requires a CUDA GPU; flash and math work"),
        ("cudnn", 1, "requires --precision bf16 or fp16 on a GPU"),
        ("flash", 1, "requires --precision bf16 or fp16 on a GPU"),
    ],
)
def test_kernels_are_refused_where_they_have_no_version(backend: str, gpus: int, message: str) -> None:
    with pytest.raises(CannotRun, match=rf"^attention {backend} {message}"):
        expand(ask(workload="transformer", attention=backend), with_gpus(1) if gpus else TWO_CORES)
    assert expand(ask(workload="transformer", attention=backend, precision="bf16"), with_gpus(1)).trials
