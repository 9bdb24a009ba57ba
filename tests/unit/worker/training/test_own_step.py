"""A user's own step: it trains as its parts would, gets what the user gave, and rules out some settings."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from scalescope.errors import BadInput
from scalescope.experiment.explanations import without_optimizer
from scalescope.worker.process.position import Position
from scalescope.worker.strategies import ddp, pipeline, scratch_ddp, single
from scalescope.worker.training.assembly import build_step
from scalescope.worker.training.optimizers import GivenOptimizer, OptimizerRebuild, named_groups
from scalescope.worker.training.own_step import arranged, members_of, refuse_parts
from scalescope.worker.training.step import Batch, Data, OwnStep, Step, StepWindow, Workload
from tests.builders.results import make_trial
from tests.builders.workers import CPU, run_steps

LOSS = nn.functional.cross_entropy
TRIAL = make_trial()


def train_one(model: Any, batch: Any, optimizer: Any) -> Tensor:
    """What the timed loop does with the parts of a step."""
    inputs, targets = batch
    loss = LOSS(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def with_step(
    run: Callable[..., Any] = train_one, models: Any = None, optimizers: Any = None, **changes: Any
) -> Workload:
    """A workload as a job with a step makes it; optimizers are given as the user would."""
    models = _model() if models is None else models
    whole = models if isinstance(models, nn.Module) else nn.ModuleDict(_named(models))
    given = [
        GivenOptimizer(optimizer=member, groups=named_groups(member, whole))
        if isinstance(member, torch.optim.Optimizer)
        else member
        for member in members_of(optimizers)
    ]
    step = OwnStep(run=run, models=models, optimizers=arranged(optimizers, given))
    return Workload(model=whole, data=Data(), loss=LOSS, own_step=step, **changes)


def _named(models: Any) -> dict[str, nn.Module]:
    named = models.items() if isinstance(models, dict) else enumerate(models)
    return {str(name): model for name, model in named}


def _batches(count: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(5, 3, generator=generator), torch.randint(2, (5,), generator=generator))
        for _ in range(count)
    ]


def _run(step: Step, count: int = 6) -> StepWindow:
    return run_steps(step, iter(_batches(count)), count, Position(None, 0, 1))


def _losses(step: Step) -> list[float]:
    return [float(loss) for loss in _run(step).losses]


def test_the_same_training_as_a_step_and_in_parts_has_the_same_losses() -> None:
    model = _model()
    plain = Workload(
        model=model, data=Data(), loss=LOSS, make_optimizer=OptimizerRebuild.of(_sgd(model), model)
    )
    other = _model()
    own = with_step(models=other, optimizers=_sgd(other))
    assert _losses(build_step(TRIAL, plain, CPU)) == _losses(build_step(TRIAL, own, CPU))
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_the_parts_of_a_step_that_the_host_cannot_part_are_unknown() -> None:
    window = _run(build_step(TRIAL, with_step(), CPU))
    assert set(window.host_s) == {"input"}
    assert {len(marks) for marks in window.host_marks_s} == {1}
    assert window.samples == 6 * 5


@pytest.mark.parametrize("kind", [dict, tuple])
def test_models_and_optimizers_arrive_in_the_structure_they_were_given(kind: type) -> None:
    names = ("a", "b")
    pairs = [_model(), _model()]
    models = dict(zip(names, pairs, strict=True)) if kind is dict else kind(pairs)
    optimizers = tuple(_sgd(model) for model in pairs)
    received: list[Any] = []

    def run(*arguments: Any) -> None:
        received.append(arguments)

    _run(build_step(TRIAL, with_step(run, models, optimizers), CPU), 1)
    ((got_models, _, got_optimizers),) = received
    assert type(got_models) is kind and got_models == models
    assert got_optimizers == optimizers


def test_functions_of_parameters_make_the_optimizer_of_their_model() -> None:
    models = {"a": _model(), "b": _model()}
    make = functools.partial(torch.optim.SGD, lr=0.1)
    step = build_step(TRIAL, with_step(models=models, optimizers={"a": make, "b": make}), CPU)
    held = [optimizer.param_groups[0]["params"] for optimizer in step.optimizers]
    assert [[id(p) for p in parameters] for parameters in held] == [
        [id(p) for p in model.parameters()] for model in models.values()
    ]
    step = build_step(make_trial(optimizer="adamw", lr=0.25), with_step(), CPU)  # the settings make one
    assert isinstance(step.optimizer, torch.optim.AdamW)
    assert (step.optimizer.defaults["lr"], step.more_optimizers) == (0.25, ())


def test_every_optimizer_is_fused_where_that_is_asked_for() -> None:
    models = (_model(), _model())
    given = (_sgd(models[0]), functools.partial(torch.optim.SGD, lr=0.1))
    step = build_step(make_trial(fused_optimizer=True), with_step(models=models, optimizers=given), CPU)
    assert [optimizer.param_groups[0]["fused"] for optimizer in step.optimizers] == [True, True]
    with pytest.raises(BadInput, match="RMSprop has no fused version"):
        model = _model()
        rms = with_step(models=model, optimizers=torch.optim.RMSprop(model.parameters()))
        build_step(make_trial(fused_optimizer=True), rms, CPU)


@pytest.mark.parametrize(
    ("returned", "losses"),
    [(torch.tensor([2.0], requires_grad=True), [2.0]), (torch.tensor(3), [3.0]), (1.5, [1.5]), (None, [])],
)
def test_losses_are_kept_where_a_step_returns_them(returned: Any, losses: list[float]) -> None:
    window = _run(build_step(TRIAL, with_step(lambda *arguments: returned), CPU), 1)
    assert [float(loss) for loss in window.losses] == losses
    assert len(window.batch_losses) == len(losses)
    assert not any(loss.requires_grad for loss in window.losses)


@pytest.mark.parametrize(
    ("returned", "described"),
    [(torch.zeros(2), "a tensor of shape (2,)"), ((1.0, 2.0), "'tuple'"), ("low", "'str'")],
)
def test_what_is_not_a_loss_is_refused(returned: Any, described: str) -> None:
    with pytest.raises(BadInput) as caught:
        _run(build_step(TRIAL, with_step(lambda *arguments: returned), CPU), 1)
    assert str(caught.value) == (
        f"the workload's step returned {described}; expected its loss as a scalar or number, or None"
    )


def test_without_optimizer_gradients_are_computed_and_parameters_stay() -> None:
    model = _model()
    optimizer = _sgd(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    gradients: list[Tensor | None] = []

    def run(model: Any, batch: Any, optimizer: Any) -> Tensor:
        optimizer.step(lambda: LOSS(model(batch[0]), batch[1]).backward())  # a closure computes gradients
        gradients.append(model[0].weight.grad)
        loss = train_one(model, batch, optimizer)
        torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)  # wraps what the ablation put there
        return loss

    ablation = without_optimizer(TRIAL)
    assert ablation is not None
    before = [parameter.detach().clone() for parameter in model.parameters()]
    _run(build_step(ablation, with_step(run, model, optimizer), CPU), 2)
    assert all(map(torch.equal, before, model.parameters()))
    assert len(gradients) == 2 and all(gradient is not None for gradient in gradients)
    assert scheduler.optimizer is optimizer


def test_autocast_is_around_the_models_and_not_around_backward() -> None:
    class Formats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, inputs: Tensor) -> dict[str, Any]:
            outputs = self.layer(inputs)
            formats.append(outputs.dtype)
            return {"logits": outputs, "more": (outputs, [outputs], "text")}

    def run(model: Any, batch: Any, optimizer: Any) -> Tensor:
        outputs = model(batch[0])
        formats.extend([outputs["logits"].dtype, outputs["more"][1][0].dtype])
        in_autocast.append(torch.is_autocast_enabled("cpu"))
        loss = LOSS(outputs["logits"], batch[1])
        loss.backward()
        return loss

    formats: list[torch.dtype] = []
    in_autocast: list[bool] = []
    _run(build_step(make_trial(precision="bf16"), with_step(run, Formats()), CPU), 1)
    assert formats == [torch.bfloat16, torch.float32, torch.float32]
    assert in_autocast == [False]


def test_compiling_compiles_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[nn.Module, Any]] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    monkeypatch.setattr(nn.Module, "compile", lambda self, mode: compiled.append((self, mode)))
    models = (_model(), _model())

    def run(models: Any, batch: Any, optimizers: Any) -> Tensor:
        return LOSS(models[0](batch[0]), batch[1])

    step = build_step(make_trial(compile="default"), with_step(run, models), CPU)
    assert len(_run(step, 2).losses) == 2
    assert compiled == [(models[0], None), (models[1], None)]


@pytest.mark.parametrize(
    ("settings", "strategy", "reason"),
    [
        ({"accumulation_steps": 4}, single, "accumulation_steps 4 repeats forward and backward"),
        ({"precision": "fp16"}, single, "precision fp16 scales the loss between forward and backward"),
        ({"jit": True}, single, "jit replaces the model, to which the step may refer"),
        ({"stand_in": True}, single, "stand_in measures forward, backward and optimizer one by one"),
        ({"eval": True}, single, "eval calls the model with the inputs of a batch"),
        (
            {"strategy": "pipeline"},
            pipeline,
            "strategy pipeline runs forward and backward of microbatches by a schedule",
        ),
        (
            {"strategy": "scratch_ddp"},
            scratch_ddp,
            "strategy scratch_ddp requires gradients that are cleared in place",
        ),
        (
            {"strategy": "mine"},
            object(),
            "strategy mine splits a step into forward, backward and update",
        ),
    ],
)
def test_what_needs_the_parts_of_a_step_is_refused_with_the_reason(
    settings: dict[str, Any], strategy: Any, reason: str
) -> None:
    with pytest.raises(BadInput) as caught:
        refuse_parts(TRIAL.replace(**settings), with_step(), strategy)
    assert str(caught.value).startswith(f"{reason}, and the workload defines its own step; ")


def test_other_workloads_and_settings_are_not_refused() -> None:
    plain = Workload(model=_model(), data=Data(), loss=LOSS)
    refuse_parts(TRIAL.replace(accumulation_steps=4, precision="fp16"), plain, pipeline)
    refuse_parts(make_trial(precision="bf16", compile="default", num_workers=1), with_step(), ddp)


@pytest.mark.usefixtures("alone")
def test_ddp_wraps_every_model_that_is_trained_by_itself() -> None:
    average = _model().requires_grad_(False)
    models = {"first": _model(), "second": _model(), "average": average}
    received: list[Any] = []

    def run(models: Any, batch: Any, optimizer: Any) -> Tensor:
        received.append(models)
        loss = LOSS(models["first"](batch[0]), batch[1]) + LOSS(models["second"](batch[0]), batch[1])
        loss.backward()
        return loss

    trial = make_trial(strategy="ddp", static_graph=False, bucket_cap_mb=None)
    step = build_step(trial, with_step(run, models), CPU)
    assert step.watch is not None
    step.watch.pause()
    _run(step, 3)
    wrapped = received[0]
    assert [isinstance(model, DistributedDataParallel) for model in wrapped.values()] == [True, True, False]
    assert [wrapped["first"].module, wrapped["second"].module, wrapped["average"]] == list(models.values())
    assert len(step.samples()["bucket_bytes"]) == 2  # one bucket of each
    assert step.watch.times() is None
