"""Refuses a model that cannot fit into memory while it is built: before the values of its parameters exist.

A parameter is registered when its memory is reserved but not yet written, so nothing real has been taken
from the system by then. Only a user's model needs this: built-in ones are refused before ranks start.
"""

import contextlib
import weakref
from collections.abc import Iterator, Mapping

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.results.rank_job import ROOM_VARIABLE


class _TooLargeError(Exception):
    """Raised inside a user's function, whose line it then names."""


def room_of(environment: Mapping[str, str]) -> int | None:
    """Bytes of the host that this rank may take at most, as its launcher says; None without a limit."""
    text = environment.get(ROOM_VARIABLE, "")
    return int(text) if text.isdigit() else None


@contextlib.contextmanager
def parameters_within(room: int | None) -> Iterator[None]:
    """Inside, registering parameters of more than `room` bytes together is refused."""
    if room is None:
        yield
        return
    registered: dict[int, weakref.ref[nn.Parameter]] = {}
    ever = 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal ever
        if parameter is None or (id(parameter) in registered and registered[id(parameter)]() is parameter):
            return
        registered[id(parameter)] = weakref.ref(parameter)
        ever += _bytes_of(parameter)
        if ever > room:  # of several models in turn, only the last is there
            live = [reference() for reference in registered.values()]
            total = sum(_bytes_of(parameter) for parameter in live if parameter is not None)
            if total > room:
                raise _TooLargeError(_too_large(f"more than {_gib(total)} of parameters", room))

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
    held = sum(map(_bytes_of, parameters))
    gradients = sum(_bytes_of(parameter) for parameter in parameters if parameter.requires_grad)
    if held + gradients > room:
        what = f"{_gib(held)} of parameters and {_gib(gradients)} of gradients"
        raise BadInput(f"workload {trial.workload}: {_too_large(what, room)}")


def _bytes_of(parameter: nn.Parameter) -> int:
    """On the host; parameters on a GPU or without data take nothing there."""
    return parameter.nbytes if parameter.device.type == "cpu" else 0


def _too_large(what: str, room: int) -> str:
    return (
        f"the model has {what}, but there is {_gib(room)} of memory per rank; "
        "add --allow-oom to build it anyway"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
