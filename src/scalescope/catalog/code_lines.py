"""The lines of code that set a lever's value in a user's PyTorch script, by the part of the script."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ScriptPart = Literal[
    "shell",
    "imports",
    "definitions",
    "start",
    "model",
    "wrapper",
    "wrapped",
    "optimizer",
    "loader",
    "before_loop",
    "loop",
    "copy",
    "batch",
    "before_forward",
    "forward",
    "loss",
    "backward",
    "gradients",
    "update",
    "clear",
]
# How the lines of a part are put into it: as statements of their own, as keyword arguments (or variables) of
# the call that is there, as context managers around it, as a function around the loader, or instead of it.
Form = Literal["statements", "arguments", "contexts", "function", "replacement"]

# In the order in which a script has them. Lines may use the names of a common script: `model`, `device`,
# `optimizer`, `loader`, `batch`, `loss`, and `compute_loss(batch)` for the forward pass and the loss.
PARTS: Mapping[ScriptPart, Form] = {
    "shell": "arguments",  # environment variables
    "imports": "statements",
    "definitions": "statements",  # functions that other lines call
    "start": "statements",  # once, before the model is made
    "model": "statements",  # after the model is on its device, before anything wraps it
    "wrapper": "arguments",  # of DistributedDataParallel
    "wrapped": "statements",  # after DistributedDataParallel
    "optimizer": "arguments",  # of the optimizer
    "loader": "arguments",  # of the DataLoader
    "before_loop": "statements",  # when all of these are made
    "loop": "function",  # around the loader; batches are then on the device
    "copy": "arguments",  # of the `.to(device)` of every tensor of a batch
    "batch": "statements",  # with the batch on the device
    "before_forward": "statements",
    "forward": "contexts",  # around the forward pass and the loss
    "loss": "statements",  # with the loss, before backward
    "backward": "replacement",  # of loss.backward()
    "gradients": "statements",  # between backward and update
    "update": "replacement",  # of optimizer.step()
    "clear": "arguments",  # of optimizer.zero_grad()
}

# For lines that do something with every tensor of a batch, whatever a batch looks like.
MAP_TENSORS = '''\
def map_tensors(change, batch):
    """The batch with every tensor in it changed."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {name: map_tensors(change, value) for name, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return tuple(map_tensors(change, value) for value in batch)
    return batch'''


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLine:
    """A piece of code for one part of a script; of an argument or variable, `text` is the value."""

    part: ScriptPart
    text: str
    argument: str = ""

    @property
    def source(self) -> str:
        """The piece as written."""
        return f"{self.argument}={self.text}" if self.argument else self.text

    @property
    def target(self) -> tuple[ScriptPart, str]:
        """What the piece decides: two of them with the same target cannot both be in a script."""
        return self.part, self.argument or self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptContext:
    """What lines depend on besides the value: where and on how many ranks the script runs."""

    device: Literal["cpu", "cuda"]
    world_size: int = 1
    strategy: str = "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What a value needs in a script: lines; without any, nothing, or what `instead` says in a sentence."""

    lines: tuple[CodeLine, ...] = ()
    instead: str | None = None


def code(*lines: CodeLine) -> Code:
    """A value that is these lines."""
    return Code(lines=lines)


def statement(part: ScriptPart, text: str) -> CodeLine:
    """A line for a part that takes statements, context managers, a function or a replacement."""
    return CodeLine(part=part, text=text)


def argument(part: ScriptPart, name: str, value: Any) -> CodeLine:
    """A keyword argument for the call of a part, its value written as Python does."""
    return CodeLine(part=part, text=repr(value), argument=name)


def variable(name: str, value: str) -> CodeLine:
    """An environment variable."""
    return CodeLine(part="shell", text=value, argument=name)
