"""Your own workload: a function that returns a model, its data and its loss, and may return an optimizer."""

import contextlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from scalescope.catalog.workloads.custom import Custom
from scalescope.errors import BadInput
from scalescope.worker.training.step import BuildContext, Data, OptimizerFactory, Workload

_EXPECTED = "(model, data, loss) or (model, data, loss, optimizer)"


def build(options: Custom, device: torch.device, context: BuildContext) -> Workload:
    """Call the function and make a workload of what it returns."""
    reference = context.reference
    factory = _factory(reference)
    offered = {
        "rank": context.rank,
        "world_size": context.world_size,
        "batch_size": context.batch_size,
        "device": device,
    }
    arguments = _asked_for(reference, factory, offered)
    returned = _guarded(reference, lambda: factory(**arguments))
    if not isinstance(returned, tuple) or len(returned) not in (3, 4):
        raise _refusal(reference, f"returned {_shape_of(returned)}; expected {_EXPECTED}")
    model, data, loss, *optimizer = returned
    _check_parts(reference, model, data, loss)
    return Workload(
        model=model.to(device),
        data=_data(data),
        loss=loss,
        make_optimizer=_optimizer_factory(reference, model, optimizer[0]) if optimizer else None,
    )


def _refusal(reference: str, why: str) -> BadInput:
    return BadInput(f"workload {reference}: {why}")


def _factory(reference: str) -> Callable[..., Any]:
    source, _, name = reference.rpartition(":")
    module = _guarded(reference, lambda: _load(source))
    factory = getattr(module, name, None)
    if factory is None:
        raise _refusal(reference, f"there is no {name} in {source}")
    if not callable(factory):
        raise _refusal(reference, f"{name} is {_shape_of(factory)}, not a function")
    function: Callable[..., Any] = factory
    return function


def _load(source: str) -> ModuleType:
    """Import a file or a module as `python` started here would."""
    if not source.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(source)
    path = Path(source).resolve()
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
        raise _refusal(reference, f"{_where(reference, error)}called sys.exit({error.code})") from None
    except ModuleNotFoundError as error:
        if error.name is not None and _is_part_of(error.name, reference.rpartition(":")[0]):
            why = f"there is no module {error.name} in {Path.cwd()} or among the installed packages"
            raise _refusal(reference, why) from None
        raise _failure(reference, error) from error
    except Exception as error:
        raise _failure(reference, error) from error


def _failure(reference: str, error: Exception) -> BadInput:
    if isinstance(error, SyntaxError):
        parts = [error.msg, (error.text or "").strip()]
    else:
        parts = str(error).splitlines()[:1]
    summary = ": ".join([type(error).__name__, *filter(None, parts)])
    return _refusal(reference, f"{_where(reference, error)}{summary}")


def _is_part_of(name: str, source: str) -> bool:
    """Whether a module that is missing is the one asked for or a package on the way to it."""
    return source == name or source.startswith(f"{name}.")


def _where(reference: str, error: BaseException) -> str:
    """The last line of the user's own file that the error passed through, or the line it could not read."""
    source_file = _file_of(reference.rpartition(":")[0])
    if isinstance(error, SyntaxError) and error.filename is not None and error.lineno is not None:
        return (
            f"line {error.lineno}: "
            if error.filename == source_file
            else f"{error.filename}:{error.lineno}: "
        )
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == source_file]
    return f"line {frames[-1].lineno}: " if frames else ""


def _file_of(source: str) -> str | None:
    """The file a reference leads to, as tracebacks write it."""
    if source.endswith(".py"):
        return str(Path(source).resolve())
    with contextlib.suppress(Exception):  # looking for a module runs its packages, which may be what failed
        spec = importlib.util.find_spec(source)
        return None if spec is None else spec.origin
    return None


def _asked_for(reference: str, factory: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """The arguments a function names among those we offer."""
    wanted = _guarded(reference, lambda: inspect.signature(factory)).parameters.values()
    needed = [
        parameter.name
        for parameter in wanted
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    unknown = [name for name in needed if name not in offered]
    if unknown:
        raise _refusal(reference, f"it asks for {', '.join(unknown)}; on offer are {', '.join(offered)}")
    return {parameter.name: offered[parameter.name] for parameter in wanted if parameter.name in offered}


def _check_parts(reference: str, model: Any, data: Any, loss: Any) -> None:
    if not isinstance(model, nn.Module):
        raise _refusal(reference, f"returned {_shape_of(model)} as model; expected a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise _refusal(reference, "returned a model without parameters to train")
    if isinstance(data, Mapping | str) or not (hasattr(data, "__getitem__") or hasattr(data, "__iter__")):
        raise _refusal(reference, f"returned {_shape_of(data)} as data; expected a data set or an iterable")
    if not (hasattr(data, "__len__") or hasattr(data, "__iter__")):
        raise _refusal(reference, f"returned {_shape_of(data)} as data, which has no __len__")
    if not callable(loss):
        raise _refusal(reference, f"returned {_shape_of(loss)} as loss; expected a function")


def _data(data: Any) -> Data:
    """A loader's data set is sharded anew, since its own sampler knows nothing of ranks.

    One that does not batch hands out ready batches and stays as it is.
    """
    if not isinstance(data, DataLoader) or data.batch_sampler is None:
        return Data(samples=data)
    if isinstance(data.dataset, IterableDataset) or hasattr(data.dataset, "__len__"):
        return Data(
            samples=data.dataset,
            collate=data.collate_fn,
            num_workers=data.num_workers,
            drop_last=bool(getattr(data.batch_sampler, "drop_last", False)),
        )
    return Data(samples=data)


def _optimizer_factory(reference: str, model: nn.Module, optimizer: Any) -> OptimizerFactory | None:
    """A function of parameters as it is; an optimizer made anew, since strategies replace parameters."""
    if optimizer is None:
        return None
    if not isinstance(optimizer, torch.optim.Optimizer):
        if callable(optimizer):
            optimizer_factory: OptimizerFactory = optimizer
            return optimizer_factory
        expected = "expected an optimizer or a function that makes one of parameters"
        raise _refusal(reference, f"returned {_shape_of(optimizer)} as optimizer; {expected}")
    _check_rebuildable(reference, model, optimizer)
    kind, group = type(optimizer), optimizer.param_groups[0]
    options = {
        name: group[name] for name in inspect.signature(kind).parameters if name in group and name != "params"
    }

    def make(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        return kind(parameters, **options)

    return make


def _check_rebuildable(reference: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One group of all trained parameters says all there is to know; anything else would be guessed."""
    advice = "return a function that makes it of parameters instead"
    if len(optimizer.param_groups) > 1:
        why = f"an optimizer of {len(optimizer.param_groups)} parameter groups cannot be rebuilt; {advice}"
        raise _refusal(reference, why)
    held = {id(parameter) for parameter in optimizer.param_groups[0]["params"]}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    there = sum(id(parameter) in held for parameter in trained)
    if there < len(trained):
        why = f"the optimizer holds {there} of the model's {len(trained)} trained parameters; {advice}"
        raise _refusal(reference, why)


def _shape_of(thing: Any) -> str:
    """A thing's type in a few words: `a tuple of 2`, `an int`, `None`."""
    if thing is None:
        return "None"
    kind = type(thing).__name__
    article = "an" if kind[0].lower() in "aeiou" else "a"
    size = f" of {len(thing)}" if isinstance(thing, tuple | list | dict) else ""
    return f"{article} {kind}{size}"
