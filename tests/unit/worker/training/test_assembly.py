"""Assembly: what an ablation leaves out of a step, and nothing else."""

import pytest
import torch
from torch import nn

from scalescope.errors import BadInput
from scalescope.experiment.explanations import without_optimizer
from scalescope.experiment.trial import Trial
from scalescope.worker.process.position import Position
from scalescope.worker.training.assembly import build_step, build_workload
from scalescope.worker.training.step import Data, Workload
from tests.builders.results import make_trial
from tests.builders.workers import CPU, run_steps


class Alone:
    """A group of one rank."""

    rank = 0
    world_size = 1

    def exchange(self, name: str, text: str) -> dict[int, str]:
        return {0: text}


def trained(trial: Trial) -> tuple[list[torch.Tensor], list[torch.Tensor], int]:
    """The parameters before and after two steps, and how many gradients were computed in the last."""
    torch.manual_seed(0)
    workload = build_workload(trial, Alone(), CPU)  # type: ignore[arg-type]
    step = build_step(trial, workload, CPU)
    gradients = []
    for parameter in workload.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: gradients.append(parameter.grad))
    before = [parameter.detach().clone() for parameter in workload.model.parameters()]
    batch = (torch.randn(10, 8), torch.randint(2, (10,)))
    run_steps(step, iter([batch] * 2), 2, Position(None, 0, 1))
    return before, [parameter.detach() for parameter in workload.model.parameters()], len(gradients)


@pytest.mark.parametrize("settings", [{"optimizer": "sgd"}, {"optimizer": "adamw"}])
def test_without_optimizer_gradients_are_computed_and_parameters_stay(settings: dict[str, str]) -> None:
    normal = make_trial(input_dim=8, hidden_dim=8, **settings)
    ablation = without_optimizer(normal)
    assert ablation is not None
    before, after, gradients = trained(ablation)
    assert all(map(torch.equal, before, after))
    before, after, expected = trained(normal)
    assert not any(map(torch.equal, before, after))
    assert gradients == expected > 0


def _with_own_optimizer(kind: type[torch.optim.Optimizer]) -> Workload:
    data = Data(synthesize=lambda count, generator: (torch.randn(count, 4), torch.randint(2, (count,))))
    return Workload(
        model=nn.Linear(4, 2),
        data=data,
        loss=nn.functional.cross_entropy,
        make_optimizer=lambda parameters: kind(parameters, lr=0.1),  # type: ignore[call-arg]
    )


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_the_optimizer_of_a_workload_is_fused_where_that_is_asked_for(
    kind: type[torch.optim.Optimizer],
) -> None:
    for fused in (False, True):
        trial = make_trial(fused_optimizer=fused)
        step = build_step(trial, _with_own_optimizer(kind), torch.device("cpu"))
        assert [bool(group["fused"]) for group in step.optimizer.param_groups] == [fused]
        loss = step.forward((torch.randn(3, 4), torch.tensor([0, 1, 0])))
        step.backward(loss)
        step.apply()


def test_an_optimizer_without_a_fused_version_is_named() -> None:
    with pytest.raises(BadInput, match="RMSprop has no fused version"):
        build_step(
            make_trial(fused_optimizer=True), _with_own_optimizer(torch.optim.RMSprop), torch.device("cpu")
        )
