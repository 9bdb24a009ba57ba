"""Your own workload: a function that returns a model, its data and its loss, and may return an optimizer."""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from scalescope.catalog.workloads.custom import Custom
from scalescope.errors import BadInput
from scalescope.worker.step import Data, OptimizerFactory, Surroundings, Workload

_EXPECTED = "(model, data, loss) or (model, data, loss, optimizer)"


def build(options: Custom, device: torch.device, surroundings: Surroundings) -> Workload:
    """Call the function and make a workload of what it returns."""
    reference = surroundings.reference
    factory = _factory(reference)
    offered = {
        "rank": surroundings.rank,
        "world_size": surroundings.world_size,
        "batch_size": surroundings.batch_size,
        "device": device,
    }
    returned = _guarded(reference, lambda: factory(**_asked_for(reference, factory, offered)))
    if not isinstance(returned, tuple) or len(returned) not in (3, 4):
        raise BadInput(f"{reference} returned {_shape_of(returned)}; expected {_EXPECTED}")
    model, data, loss, *optimizer = returned
    _check_parts(reference, model, data, loss)
    return Workload(
        model=model.to(device),
        data=_data(data),
        loss=loss,
        make_optimizer=_optimizer_factory(reference, optimizer[0]) if optimizer else None,
    )


def _factory(reference: str) -> Callable[..., Any]:
    place, _, name = reference.rpartition(":")
    module = _guarded(reference, lambda: _load(place))
    factory = getattr(module, name, None)
    if factory is None:
        raise BadInput(f"workload {reference}: there is no {name} in {place}")
    if not callable(factory):
        raise BadInput(f"workload {reference}: {name} is a {type(factory).__name__}, not a function")
    found: Callable[..., Any] = factory
    return found


def _load(place: str) -> ModuleType:
    """Import a file or a module as `python` started here would."""
    if not place.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(place)
    path = Path(place).resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and loader processes look their module up
    spec.loader.exec_module(module)
    return module


def _guarded(reference: str, call: Callable[[], Any]) -> Any:
    """Run somebody's code; whatever it does wrong is said in one line that points into it."""
    try:
        return call()
    except SystemExit as error:
        raise BadInput(f"{_where(reference, error)}: called sys.exit({error.code})") from None
    except Exception as error:
        text = (str(error).splitlines() or [""])[0]
        raise BadInput(f"{_where(reference, error)}: {type(error).__name__}: {text}") from error


def _where(reference: str, error: BaseException) -> str:
    """The last line of the user's own file that the error passed through."""
    place = reference.rpartition(":")[0]
    name = Path(place).name if place.endswith(".py") else place.replace(".", "/") + ".py"
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename.endswith(name)]
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    if frames and line is None:
        line = frames[-1].lineno
    return f"workload {reference}" if line is None else f"workload {reference}: line {line}"


def _asked_for(reference: str, factory: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """The arguments a function names among those we offer."""
    wanted = inspect.signature(factory).parameters.values()
    needed = [
        one.name
        for one in wanted
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    unknown = [name for name in needed if name not in offered]
    if unknown:
        raise BadInput(
            f"workload {reference}: it asks for {', '.join(unknown)}; on offer are {', '.join(offered)}"
        )
    return {one.name: offered[one.name] for one in wanted if one.name in offered}


def _check_parts(reference: str, model: Any, data: Any, loss: Any) -> None:
    if not isinstance(model, nn.Module):
        raise BadInput(f"{reference} returned a {type(model).__name__} as model; expected a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadInput(f"{reference} returned a model without parameters to train")
    if not (hasattr(data, "__getitem__") or hasattr(data, "__iter__")):
        raise BadInput(
            f"{reference} returned a {type(data).__name__} as data; expected a data set or an iterable"
        )
    if not callable(loss):
        raise BadInput(f"{reference} returned a {type(loss).__name__} as loss; expected a function")


def _data(data: Any) -> Data:
    """A loader's data set is sharded anew; its own sampler knows nothing of ranks."""
    if isinstance(data, DataLoader) and hasattr(data.dataset, "__getitem__"):
        return Data(samples=data.dataset, collate=data.collate_fn)
    return Data(samples=data)


def _optimizer_factory(reference: str, optimizer: Any) -> OptimizerFactory | None:
    """A function of parameters as it is; an optimizer made anew, since strategies replace parameters."""
    if optimizer is None:
        return None
    if not isinstance(optimizer, torch.optim.Optimizer):
        if callable(optimizer):
            found: OptimizerFactory = optimizer
            return found
        raise BadInput(
            f"{reference} returned a {type(optimizer).__name__} as optimizer; "
            "expected an optimizer or a function that makes one of parameters"
        )
    if len(optimizer.param_groups) > 1:
        raise BadInput(
            f"{reference}: an optimizer of {len(optimizer.param_groups)} parameter groups cannot be rebuilt; "
            "return a function that makes it of parameters"
        )
    kind, group = type(optimizer), optimizer.param_groups[0]
    options = {
        name: group[name] for name in inspect.signature(kind).parameters if name in group and name != "params"
    }

    def make(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        return kind(parameters, **options)

    return make


def _shape_of(returned: Any) -> str:
    kind = type(returned).__name__
    return f"a {kind} of {len(returned)}" if isinstance(returned, tuple | list | dict) else f"a {kind}"
