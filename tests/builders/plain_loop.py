"""A whole training script in plain PyTorch for a workload of one's own, with the lines of levers in it."""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from scalescope.catalog.cards import card
from scalescope.catalog.code_lines import MAP_TENSORS, CodeLine, ScriptContext, ScriptPart
from scalescope.catalog.workloads.custom import ARGUMENTS, source_and_function
from scalescope.report.tuning.code import arguments, by_part, loop_body

_HEAD = '''\
"""Trains {reference} in plain PyTorch and prints how fast, as JSON."""

import importlib
import importlib.util
import inspect
import itertools
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset
{imports}
SOURCE, FUNCTION = {source!r}, {function!r}
BATCH_SIZE, WINDOW_S, WARMUP_STEPS, SEED = {batch_size}, {window_s}, {warmup_steps}, {seed}
RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
device = torch.device({device!r}, int(os.environ.get("LOCAL_RANK", 0)) if {device!r} == "cuda" else None)
'''

# What a workload's function returns, as `docs/own-workloads.md` describes it.
_WORKLOAD = '''\
def build():
    """What the workload's function returns: model, data, loss and, if it has one, its optimizer."""
    if SOURCE.endswith(".py"):
        sys.path.insert(0, os.path.dirname(SOURCE))
        name = os.path.basename(SOURCE)[: -len(".py")]
        spec = importlib.util.spec_from_file_location(name, SOURCE)
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(name, module)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(SOURCE)
    function = getattr(module, FUNCTION)
    known = dict(zip({names!r}, (RANK, RANKS, BATCH_SIZE, device)))
    wanted = inspect.signature(function).parameters
    model, data, loss, *optimizer = function(**{{name: known[name] for name in wanted if name in known}})
    return model, data, loss, optimizer[0] if optimizer else None


def make_optimizer(parameters, **options):
    """The workload's own optimizer with more options, or SGD."""
    if own_optimizer is None:
        return torch.optim.SGD(parameters, lr=0.01, **options)
    if not isinstance(own_optimizer, torch.optim.Optimizer):
        return own_optimizer(parameters, **options)
    kind, group = type(own_optimizer), own_optimizer.param_groups[0]
    names = [name for name in inspect.signature(kind).parameters if name in group and name != "params"]
    return kind(parameters, **{{**{{name: group[name] for name in names}}, **options}})


def make_loader(data, **options):
    """A loader of the workload's samples; data that yields whole batches is used as it is."""
    if isinstance(data, DataLoader) and data.batch_sampler is not None:
        kept = ("num_workers", "collate_fn")
        options = {{**{{name: getattr(data, name) for name in kept}}, **options}}
        options.setdefault("drop_last", getattr(data.batch_sampler, "drop_last", False))
        data = data.dataset
    options.setdefault("batch_size", BATCH_SIZE)
    if isinstance(data, IterableDataset):
        return DataLoader(data, **options)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return DataLoader(data, sampler=DistributedSampler(data, RANKS, RANK, seed=SEED), **options)
    return data


def endless(loader):
    """Epoch after epoch."""
    for epoch in itertools.count():
        if isinstance(getattr(loader, "sampler", None), DistributedSampler):
            loader.sampler.set_epoch(epoch)
        yield from loader


def size_of(batch):
    """Samples in a batch."""
    if isinstance(batch, torch.Tensor):
        return len(batch)
    values = batch.values() if isinstance(batch, dict) else batch
    return next(size_of(value) for value in values if isinstance(value, (torch.Tensor, dict, tuple, list)))


def compute_loss(batch):
    """The forward pass and the loss."""
    if isinstance(batch, dict):
        return loss_of(model(**batch), batch)
    *inputs, targets = batch
    return loss_of(model(*inputs), targets)
'''

_TRAINING = '''\
def train(steps):
    """Train for some steps; returns the samples, the seconds and the last loss."""
    finish()
    began, samples = time.perf_counter(), 0
    for batch in itertools.islice(batches, steps):
        samples += size_of(batch)
{body}
    finish()
    return samples, time.perf_counter() - began, loss.detach()


def finish():
    """Wait for the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure():
    """Print the speed of the steps after those in which memory is allocated and code perhaps compiled."""
    train(WARMUP_STEPS)
    began, is_warm = time.perf_counter(), False
    while not is_warm:
        _, seconds, _ = train(WARMUP_STEPS)
        is_warm = RANKS > 1 or time.perf_counter() - began > 1
    steps = torch.tensor(max(5.0, WINDOW_S * WARMUP_STEPS / seconds), device=device)
    if RANKS > 1:
        dist.broadcast(steps, src=0)
    samples, seconds, loss = train(round(steps.item()))
    if RANK == 0:
        print(json.dumps({{"samples_per_s": RANKS * samples / seconds, "loss": loss.item()}}))
    if RANKS > 1:
        dist.destroy_process_group()


torch.manual_seed(SEED)
if device.type == "cuda":
    torch.cuda.set_device(device)
{start}
model, data, loss_of, own_optimizer = build()
model = model.to(device)
{model}
optimizer = make_optimizer(model.parameters(){optimizer})
loader = make_loader(data{loader})
batches = {batches}
{before_loop}
if __name__ == "__main__":
    measure()
'''
_JOIN = {
    "cpu": 'dist.init_process_group("gloo")',
    "cuda": 'dist.init_process_group("nccl", device_id=device)',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """How long a script trains, and on what batches."""

    batch_size: int = 32
    window_s: float = 3.0
    warmup_steps: int = 11
    seed: int = 0


def plain_loop(
    reference: str,
    lines: Iterable[CodeLine],
    context: ScriptContext,
    options: LoopOptions | None = None,
) -> str:
    """The script of a workload FILE.py:FUNCTION; on several ranks it is started by torchrun, with DDP."""
    options = options or LoopOptions()
    wraps = context.world_size > 1
    groups = by_part((*(card("strategies", "ddp").code(context).lines if wraps else ()), *lines))

    def statements(part: ScriptPart) -> list[str]:
        return [line.text for line in groups.get(part, ())]

    def more_arguments(part: ScriptPart) -> str:
        return f", {arguments(groups[part])}" if part in groups else ""

    source, function = source_and_function(reference)
    head = _HEAD.format(
        reference=reference,
        imports="\n".join((*statements("imports"), "")),
        source=source,
        function=function,
        device=context.device,
        batch_size=options.batch_size,
        window_s=options.window_s,
        warmup_steps=options.warmup_steps,
        seed=options.seed,
    )
    copy = "batch = map_tensors(lambda tensor: {}, batch)" if context.device == "cuda" else None
    joining = [_JOIN[context.device]] if wraps else []
    wrapping = [f"model = DistributedDataParallel(model{more_arguments('wrapper')})"] if wraps else []
    training = _TRAINING.format(
        body=textwrap.indent(loop_body(groups, copy), " " * 8),
        start="\n".join((*joining, *statements("start"))),
        model="\n".join((*statements("model"), *wrapping, *statements("wrapped"))),
        optimizer=more_arguments("optimizer"),
        loader=more_arguments("loader"),
        batches=f"iter({_around(statements('loop'), 'endless(loader)')})",
        before_loop="\n".join(statements("before_loop")),
    )
    definitions = dict.fromkeys((MAP_TENSORS, *statements("definitions")))
    return "\n\n\n".join((head, _WORKLOAD.format(names=ARGUMENTS), *definitions, training))


def _around(functions: list[str], text: str) -> str:
    for function in functions:
        text = f"{function}({text})"
    return text
