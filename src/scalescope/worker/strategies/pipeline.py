"""The `pipeline` strategy: a sequential model in stages, one per rank, by `torch.distributed.pipelining`."""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils.flop_counter import FlopCounterMode

from scalescope.catalog.strategies.pipeline import Pipeline, balanced_cuts, parts_of
from scalescope.errors import BadInput
from scalescope.worker.training.feeding import fetch, to_device
from scalescope.worker.training.step import Batch, Data, OptimizerFactory, Step, Workload, plain_step

SPLITS_STEP = "runs forward and backward of microbatches by a schedule"
# Outputs are not needed once the loss is known; older versions of torch keep and join them anyway.
_WITHOUT_OUTPUTS = (
    {"return_outputs": False} if "return_outputs" in inspect.signature(ScheduleGPipe.step).parameters else {}
)


def wrap(
    workload: Workload,
    options: Pipeline,
    device: torch.device,
    without_communication: bool,
    make_optimizer: OptimizerFactory,
) -> Step:
    """A training step whose forward runs a whole schedule, backward included."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    blocks = blocks_of(workload.model)
    stages = split(blocks, costs_of(blocks, _sample_inputs(workload.data, device)), ranks)
    for number, stage in enumerate(stages):
        if number != rank:
            stage.to("meta")  # frees the stages of other ranks, as in a real pipeline
    runner = _StageRunner(stages[rank], workload.loss, options, device)
    optimizer = make_optimizer(stages[rank].parameters())

    def apply() -> None:
        optimizer.step()
        runner.finish()

    step = plain_step(workload, stages[rank], optimizer)
    return dataclasses.replace(
        step, module=stages[rank], forward=runner.forward, backward=lambda loss: None, apply=apply
    )


class _StageRunner:
    """Runs the schedules of one stage and broadcasts the loss to all ranks."""

    def __init__(
        self, stage: nn.Module, loss: Callable[[Any, Any], Tensor], options: Pipeline, device: torch.device
    ) -> None:
        self._stage, self._loss, self._options, self._device = stage, loss, options, device
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._schedules: dict[torch.Size, Any] = {}
        self._loss_broadcast: dist.Work | None = None

    def forward(self, batch: Batch) -> Tensor:
        """Train on a batch; the returned tensor holds the mean loss after `finish`.

        The broadcast overlaps with the optimizer: all ranks get the loss without waiting for it.
        """
        two = isinstance(batch, tuple) and len(batch) == 2
        if not two or not all(isinstance(part, Tensor) for part in batch):
            raise BadInput("pipeline requires batches of two tensors: inputs and targets")
        inputs, targets = batch
        schedule = self._schedule_for(inputs)
        losses: list[Tensor] = []
        if self._rank == 0:
            schedule.step(inputs, **_WITHOUT_OUTPUTS)
        elif self._rank == self._ranks - 1:
            schedule.step(target=targets, losses=losses, **_WITHOUT_OUTPUTS)
        else:
            schedule.step(**_WITHOUT_OUTPUTS)
        loss = torch.zeros((), device=self._device)
        if losses:
            loss += torch.stack(losses).detach().mean()
        self._loss_broadcast = dist.broadcast(loss, src=self._ranks - 1, async_op=True)
        return loss

    def finish(self) -> None:
        """Wait for the broadcast of the loss."""
        if self._loss_broadcast is not None:
            self._loss_broadcast.wait()
            self._loss_broadcast = None

    def _schedule_for(self, inputs: Tensor) -> Any:
        """One schedule per input shape: torch determines the message sizes once.

        The last batch of an epoch may be too small for 1f1b; it uses gpipe.
        """
        if inputs.shape not in self._schedules:
            stage = PipelineStage(self._stage, self._rank, self._ranks, self._device)
            parts = parts_of(len(inputs), self._options.microbatches, self._ranks)
            uses_1f1b = self._options.schedule == "1f1b" and parts >= self._ranks
            kind = Schedule1F1B if uses_1f1b else ScheduleGPipe
            self._schedules[inputs.shape] = kind(stage, parts, loss_fn=self._loss, scale_grads=True)
        return self._schedules[inputs.shape]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks that follow one another in a sequential model."""
    unrolled: Any = getattr(model, "as_sequential", None)
    if unrolled is not None:
        model = unrolled()
    if not isinstance(model, nn.Sequential):
        raise BadInput(
            f"pipeline requires an nn.Sequential or a model with as_sequential(), got {type(model).__name__}"
        )
    return list(model)


def _sample_inputs(data: Data, device: torch.device) -> Tensor | None:
    """The inputs of two samples, if reading them does not consume training data."""
    if data.synthesize is not None:
        batch = data.synthesize(2, torch.Generator().manual_seed(0))
    elif hasattr(data.samples, "__getitem__") and len(data.samples) > 1:
        batch = fetch(data, data.samples, [0, 1])
    else:
        return None
    inputs = batch[0] if isinstance(batch, tuple | list) else None
    return to_device(inputs, device) if isinstance(inputs, Tensor) else None


def costs_of(blocks: Sequence[nn.Module], inputs: Tensor | None) -> list[int]:
    """The cost of each block: its floating-point operations, and its parameters for the optimizer.

    Counted, not timed: every rank must get the same split.
    """
    costs = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks]
    if inputs is None:
        return costs
    was_training = [block.training for block in blocks]
    with torch.no_grad():
        for number, block in enumerate(blocks):
            with FlopCounterMode(display=False) as counter:
                inputs = block.eval()(inputs)  # running statistics and random numbers do not change
            costs[number] += counter.get_total_flops()
    for block, training in zip(blocks, was_training, strict=True):
        block.train(training)
    return costs


def split(blocks: Sequence[nn.Module], costs: Sequence[int], count: int) -> list[nn.Sequential]:
    """Split the blocks into `count` stages; the most expensive stage is as cheap as possible."""
    # An optimizer needs parameters: blocks without any join the block before them, or the first one after.
    starts = [number for number, block in enumerate(blocks) if any(True for _ in block.parameters())]
    if len(starts) < count:
        raise BadInput(
            f"pipeline on {count} ranks requires {count} blocks with parameters; the model has {len(starts)}"
        )
    edges = [0, *starts[1:], len(blocks)]
    cuts = balanced_cuts([sum(costs[low:high]) for low, high in pairwise(edges)], count)
    stages = [nn.Sequential(*blocks[edges[low] : edges[high]]) for low, high in pairwise(cuts)]
    owned = [parameter for stage in stages for parameter in stage.parameters()]
    if len(owned) != len(set(owned)):
        raise BadInput("pipeline cannot split this model: stages on different ranks would share parameters")
    return stages
