"""Step: one optimizer step, split into parts that strategies and levers can replace."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from scalescope import clocks
from scalescope.errors import BadInput
from scalescope.results.ranks import Phase
from scalescope.results.result import HOST_PARTS, WHOLE_PARTS
from scalescope.worker.process.faults import Fault
from scalescope.worker.process.position import Position
from scalescope.worker.training.batch_work import BatchWork, tensors_of, work_of
from scalescope.worker.training.ddp_logging import DdpWatch

# (inputs, ..., targets), or a mapping of the model's arguments.
Batch = Any
Batches = Iterator[Batch]
OptimizerFactory = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
NO_LOSS = torch.empty(0)  # of a step that returns none


@dataclass(frozen=True, kw_only=True)
class Data:
    """A workload's data: synthetic samples made on demand, a map-style data set, or an iterable."""

    synthesize: Callable[[int, torch.Generator], Batch] | None = None
    samples: Any = None
    validation: Any = None
    collate: Callable[[list[Any]], Batch] | None = None
    # From the user's own DataLoader; the settings override them.
    num_workers: int = 0
    drop_last: bool = False


@dataclass(frozen=True, kw_only=True)
class OwnStep:
    """A user's step, which does forward, backward and the update: `run(models, batch, optimizers)`.

    `models` and `optimizers` have the structure that the user gave them: one, or a dict, tuple or list.
    Optimizers are `GivenOptimizer` or functions of parameters; None stands for that of the settings.
    """

    run: Callable[[Any, Batch, Any], Any]
    models: Any
    optimizers: Any = None


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model, its data and its loss on one device, independent of ranks.

    Of several models, `model` holds all of them.
    """

    model: nn.Module
    data: Data
    loss: Callable[[Any, Any], Tensor]
    make_optimizer: OptimizerFactory | None = None  # a user's own workload may have one
    own_step: OwnStep | None = None
    counters: Mapping[str, str] = field(default_factory=dict)  # about the code, to be stored

    def loss_of(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of a batch under `model`, which is this workload's model or a wrapper of it.

        The last element of a batch is the targets, and all before it are the model's arguments.
        """
        if isinstance(batch, Mapping):
            _check_arguments(self.model, batch)
            return self.loss(model(**batch), batch)
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            raise BadInput(
                f"a batch is {_described(batch)}; expected (inputs, targets), (a, b, targets) for "
                "model(a, b), or a mapping of argument names"
            )
        *inputs, targets = batch
        return self.loss(model(*inputs), targets)


def _check_arguments(model: nn.Module, batch: Mapping[str, Any]) -> None:
    """Refuse a mapping whose keys are not arguments of the model, in the words of whoever wrote both."""
    try:
        inspect.signature(model.forward).bind(**batch)
    except TypeError as error:
        raise BadInput(
            f"a batch is a mapping of {', '.join(map(str, batch))}, which is passed as model(**batch), but "
            f"the forward of {type(model).__name__} does not take that: {error}"
        ) from None
    except ValueError:  # no signature: the call itself will tell
        pass


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """What `build` needs to know: the workload's name as given, the shard of the data, and the corpus.

    `rank` and `world_size` count shards: the ranks of a pipeline share one.
    """

    reference: str
    rank: int
    world_size: int
    batch_size: int
    corpus: Any = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """Forward, backward, applying and clearing gradients; `module` holds the trained parameters.

    A step takes `accumulation_steps` batches; all but the last run inside `no_sync`. A user's own step is all
    in `forward`, and the other parts are empty.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    more_optimizers: tuple[torch.optim.Optimizer, ...] = ()  # beside the first, of a user's own step
    own_models: tuple[nn.Module, ...] = ()  # what a user's own step calls, as the strategy wrapped it
    forward: Callable[[Batch], Tensor]
    backward: Callable[[Tensor], None]
    apply: Callable[[], None]
    clear: Callable[[], None]
    no_sync: Callable[[], AbstractContextManager[None]] = nullcontext
    accumulation_steps: int = 1
    # Both are read after the last step.
    samples: Callable[[], dict[str, list[float]]] = dict
    counters: Callable[[], dict[str, float | int | str | None]] = dict
    watch: DdpWatch | None = None  # only for DDP
    explain_failure: Callable[[RuntimeError, Batch], str | None] = lambda error, batch: None

    @property
    def optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        return (self.optimizer, *self.more_optimizers)

    @property
    def is_whole(self) -> bool:
        """Whether the parts of the step cannot be told apart."""
        return bool(self.own_models)


def plain_step(
    workload: Workload,
    wrapped: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    no_sync: Callable[[], AbstractContextManager[None]] = nullcontext,
    keep_gradients: bool = False,
) -> Step:
    """The ordinary training step around `wrapped`.

    `keep_gradients` clears gradients in place: setting them to None would remove them from DDP's buckets
    and cost a copy per step.
    """

    def forward(batch: Batch) -> Tensor:
        return workload.loss_of(wrapped, batch)

    def backward(loss: Tensor) -> None:
        loss.backward()

    def apply() -> None:
        optimizer.step()

    def clear() -> None:
        optimizer.zero_grad(set_to_none=not keep_gradients)

    return Step(
        module=workload.model,
        optimizer=optimizer,
        forward=forward,
        backward=backward,
        apply=apply,
        clear=clear,
        no_sync=no_sync,
    )


@dataclass(kw_only=True)
class StepWindow:
    """The outcome of consecutive steps: losses, still on the device, and the number of samples.

    `losses` has the last batch of every step, `batch_losses` all batches with the number of their step.
    `host_s` is the host's time in each known part of all steps together, and `host_marks_s` the same after
    each.
    `batch_work` is the size of all batches with the number of their step.
    """

    losses: list[Tensor] = field(default_factory=list)
    batch_losses: list[tuple[int, Tensor]] = field(default_factory=list)
    samples: int = 0
    host_s: dict[str, float] = field(default_factory=dict)
    host_marks_s: list[tuple[float, ...]] = field(default_factory=list)
    batch_work: list[tuple[int, BatchWork]] = field(default_factory=list)


class StepMaker:
    """Makes steps one after the other; `window` is what they left since it was last replaced."""

    def __init__(
        self,
        step: Step,
        batches: Batches,
        position: Position,
        fault: Fault | None = None,
        parts_of: Callable[[int], int] | None = None,  # the number of batches of a step, by its number
    ) -> None:
        self.step, self.batches = step, batches
        self._position, self._fault, self._parts_of = position, fault, parts_of
        self.begin_window()

    def begin_window(self) -> None:
        """Forget the steps so far."""
        parts = WHOLE_PARTS if self.step.is_whole else HOST_PARTS
        self.window = StepWindow(host_s=dict.fromkeys(parts, 0.0))

    def make(self) -> None:
        """Make one step."""
        step, position, window, now = self.step, self._position, self.window, clocks.perf_counter
        is_whole, host_s = step.is_whole, window.host_s
        position.begin_step()
        number = position.begun - 1
        if self._fault is not None:
            self._fault.at_step(number)
        parts = step.accumulation_steps if self._parts_of is None else self._parts_of(number)
        for remaining in range(parts, 0, -1):
            with nullcontext() if remaining == 1 else step.no_sync():
                began = now()
                batch = next(self.batches)
                position.mark(Phase.FORWARD)
                loaded = now()
                loss = step.forward(batch)
                position.mark(Phase.BACKWARD)
                computed = now()
                step.backward(loss if parts == 1 else loss / parts)  # the sum is then their mean
                ended = now()
            host_s["input"] += loaded - began
            if not is_whole:
                host_s["forward"] += computed - loaded
                host_s["backward"] += ended - computed
            window.samples += batch_size_of(batch)
            if loss.numel():
                window.batch_losses.append((number, loss.detach()))
            window.batch_work.append((number, work_of(batch)))
        position.mark(Phase.OPTIMIZER)
        began = now()
        step.apply()
        step.clear()
        if not is_whole:
            host_s["optimizer"] += now() - began
        window.host_marks_s.append(tuple(host_s.values()))
        if loss.numel():
            window.losses.append(window.batch_losses[-1][1])


def map_tensors(
    change: Callable[[Tensor], Tensor], batch: Batch, change_other: Callable[[Any], Any] | None = None
) -> Batch:
    """The batch with every tensor in it changed; `change_other` is for what is neither that nor a container.

    Lists become tuples, and mappings dicts; a named tuple stays one.
    """
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: map_tensors(change, part, change_other) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [map_tensors(change, part, change_other) for part in batch]
        return batch._make(parts) if hasattr(batch, "_make") else tuple(parts)
    return batch if change_other is None else change_other(batch)


def batch_size_of(batch: Batch) -> int:
    """Samples in a batch: the length of the first tensor in it that has one."""
    return next((len(tensor) for tensor in tensors_of(batch) if tensor.ndim), 1)


def _described(batch: Batch) -> str:
    kind = type(batch).__name__
    return f"a {kind} of {len(batch)}" if isinstance(batch, tuple | list) else f"a {kind}"
