"""Refuses a user's model that cannot fit into memory, before the values of its parameters exist.

A parameter is registered when its memory is reserved but not yet written. At the first large one, a forked
process builds the whole model on the meta device, which takes no memory, and says how large it becomes.
Built-in models need none of this: they are refused before ranks start.
"""

import contextlib
import os
import select
import signal
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from scalescope import clocks
from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.parent_death import die_with_parent
from scalescope.results.ranks import ROOM_VARIABLE

_LARGE_SHARE = 16  # a model is looked at as a whole once it takes this part of the room
_LONGEST_LOOK_S = 20.0  # without an answer the model is built anyway


class ModelTooLarge(Exception):
    """Raised inside a user's function, whose line it then names."""


def room_of(environment: Mapping[str, str]) -> int | None:
    """Bytes of the host that this rank may take at most, as its launcher says; None without a limit."""
    text = environment.get(ROOM_VARIABLE, "")
    return int(text) if text.isdigit() else None


def built_within(room: int | None, build: Callable[[], Any]) -> Any:
    """What `build` returns; refused where its parameters exceed `room` bytes together."""
    if room is None:
        return build()
    bound = room  # for the function below
    is_known = False

    def check(size: int) -> None:
        nonlocal is_known
        if size > bound // _LARGE_SHARE and not is_known:
            is_known = True
            size = max(size, size_on_meta(build))
        if size > bound:
            raise _refusal(size, bound)

    with _counting(check, devices=("cpu",)):
        try:
            return build()
        except RuntimeError as error:  # so torch answers where even a single parameter gets no memory
            size = size_on_meta(build)
            if size <= bound:
                raise
            raise _refusal(size, bound).with_traceback(error.__traceback__) from error


def _refusal(size: int, room: int) -> ModelTooLarge:
    return ModelTooLarge(_too_large(f"at least {_gib(size)} of parameters", room))


def size_on_meta(build: Callable[[], Any], limit_s: float = _LONGEST_LOOK_S) -> int:
    """Bytes of the parameters that `build` makes, found by a forked process on the meta device.

    A function that cannot run there, or takes long, is counted up to that point.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _report_size(build, writing)
    os.close(writing)
    size = 0
    deadline = clocks.monotonic() + limit_s
    try:
        with os.fdopen(reading, "rb", buffering=0) as sizes:
            while select.select([sizes], [], [], max(0.0, deadline - clocks.monotonic()))[0]:
                received = sizes.read(8 * 1024)
                if not received:
                    break
                size = int.from_bytes(received[-8:], "little")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return size


def _report_size(build: Callable[[], Any], writing: int) -> None:
    """In the forked process: write the size so far whenever it grows, and end."""
    try:
        die_with_parent(os.getppid())
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        with (
            _counting(lambda size: _write(writing, size), devices=("cpu", "meta")),
            torch.device("meta"),
        ):
            build()
    finally:
        os._exit(0)


def _write(writing: int, size: int) -> None:
    os.write(writing, size.to_bytes(8, "little"))


@contextlib.contextmanager
def _counting(check: Callable[[int], None], devices: tuple[str, ...]) -> Iterator[None]:
    """Inside, `check` gets the bytes of all parameters so far whenever one is registered."""
    registered: dict[int, weakref.ref[nn.Parameter]] = {}
    total = 0

    def gone(parameter: int, size: int) -> None:
        nonlocal total
        total -= size
        registered.pop(parameter, None)

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal total
        if parameter is None or id(parameter) in registered or parameter.device.type not in devices:
            return
        key, size = id(parameter), parameter.nbytes
        registered[key] = weakref.ref(parameter, lambda reference: gone(key, size))
        total += size
        check(total)

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def check_model(model: nn.Module, trial: Trial, room: int | None) -> None:
    """Refuse a model whose parameters and gradients cannot be there together."""
    layout = trial.memory_layout
    if room is None or layout is None or trial.on_gpu or layout.sharded:
        return
    parameters = list(model.parameters())
    held = sum(parameter.nbytes for parameter in parameters)
    gradients = sum(parameter.nbytes for parameter in parameters if parameter.requires_grad)
    if held + gradients > room:
        what = f"{_gib(held)} of parameters and {_gib(gradients)} of gradients"
        raise BadInput(f"workload {trial.workload}: {_too_large(what, room)}")


def _too_large(what: str, room: int) -> str:
    return (
        f"the model has {what}, but there is {_gib(room)} of memory per rank; "
        "add --allow-oom to build it anyway"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
