"""Shorthand for tests: build contexts, input options, cards with their defaults."""

from typing import Any, TypeVar

import torch

from scalescope.catalog.levers.copying import Copying
from scalescope.catalog.levers.input import Input
from scalescope.catalog.setting import settings_of
from scalescope.worker.process.position import Position
from scalescope.worker.training.feeding import Feed, InputOptions, Shard, feed
from scalescope.worker.training.step import Batches, BuildContext, Data, Step, StepMaker, StepWindow

CPU = torch.device("cpu")
Card = TypeVar("Card")


def options(card: type[Card], device: str = "cpu", **changes: Any) -> Card:
    """A card's options: its defaults on `device`, with some changed."""
    values = {setting.name: setting.default_for(device) for setting in settings_of(card)}
    return card(**{**values, **changes})


def build_context(
    reference: str = "test", rank: int = 0, world_size: int = 1, batch_size: int = 4
) -> BuildContext:
    """The context a workload is built in."""
    return BuildContext(reference=reference, rank=rank, world_size=world_size, batch_size=batch_size)


def feed_of(data: Data, batch_size: int = 4, *, index: int = 0, count: int = 1, **changes: Any) -> Feed:
    """The feed of one shard on the CPU."""
    return feed(data, batch_size, input_options(**changes), CPU, Shard(index=index, count=count), seed=0)


def input_options(**changes: Any) -> InputOptions:
    """How batches are made and copied: the cards' defaults, with some changed."""
    names = {setting.name for setting in settings_of(Copying)}
    copying = {name: value for name, value in changes.items() if name in names}
    loader = {name: value for name, value in changes.items() if name not in names}
    return InputOptions(loader=options(Input, **loader), copying=options(Copying, **copying))


def run_steps(
    step: Step, batches: Batches, count: int, position: Position | None = None, **rest: Any
) -> StepWindow:
    """Make steps one after the other; returns what they left."""
    maker = StepMaker(step, batches, position or Position(None, 0, 1), **rest)
    for _ in range(count):
        maker.make()
    return maker.window
