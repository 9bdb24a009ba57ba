"""A user's workload: a function that returns a model, its data and its loss, and optionally an optimizer."""

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

from scalescope.catalog.workloads.custom import ARGUMENTS, Custom, missing_function
from scalescope.errors import BadInput
from scalescope.worker.training.optimizer_hooks import copy_hooks
from scalescope.worker.training.step import BuildContext, Data, OptimizerFactory, Workload

_EXPECTED = "(model, data, loss) or (model, data, loss, optimizer)"


def build(options: Custom, device: torch.device, context: BuildContext) -> Workload:
    """Call the user's function and convert what it returns to a workload."""
    reference = context.reference
    factory = _factory(reference)
    values = (context.rank, context.world_size, context.batch_size, device)
    available = dict(zip(ARGUMENTS, values, strict=True))
    arguments = _arguments(reference, factory, available)
    returned = _guarded(reference, lambda: factory(**arguments))
    if not isinstance(returned, tuple) or len(returned) not in (3, 4):
        raise _bad_input(reference, f"returned {_shape_of(returned)}; expected {_EXPECTED}")
    model, data, loss, *optimizer = returned
    _check_parts(reference, model, data, loss)
    return Workload(
        model=model.to(device),
        data=_data(data),
        loss=loss,
        make_optimizer=_optimizer_factory(reference, model, optimizer[0]) if optimizer else None,
    )


def _bad_input(reference: str, why: str) -> BadInput:
    return BadInput(f"workload {reference}: {why}")


def _factory(reference: str) -> Callable[..., Any]:
    source, _, name = reference.rpartition(":")
    module = _guarded(reference, lambda: _load(source))
    factory = getattr(module, name, None)
    if factory is None:
        functions = _functions_of(module)
        workloads = [name for name, function in functions.items() if not _missing_arguments(function)]
        raise missing_function(reference, functions, workloads)
    if not callable(factory):
        raise _bad_input(reference, f"{name} is {_shape_of(factory)}, not a function")
    function: Callable[..., Any] = factory
    return function


def _functions_of(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The functions that a module defines itself."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    }


def _missing_arguments(factory: Callable[..., Any]) -> list[str]:
    """The arguments that a function requires and a workload is not given."""
    return [
        parameter.name
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and parameter.name not in ARGUMENTS
    ]


def _load(source: str) -> ModuleType:
    """Import a file or a module as `python` would in this folder."""
    if not source.endswith(".py"):
        with _importing_from(Path.cwd()):
            return importlib.import_module(source)
    path = Path(source).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and loader processes look up their module
    with _importing_from(path.parent, Path.cwd()):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _importing_from(*folders: Path) -> Iterator[None]:
    """Search these folders first while the user's code is loaded.

    Afterwards the first comes behind the standard library and the others last: a `profile.py` of the user
    must not reach later imports of torch, and a `torch.py` in the working folder no process of a loader.
    """
    entries = list(dict.fromkeys(map(str, folders)))
    sys.path[:] = [*entries, *(entry for entry in sys.path if entry not in entries)]
    try:
        yield
    finally:
        others = [entry for entry in sys.path if entry not in entries]
        end = 1 + max((index for index, entry in enumerate(others) if _is_standard(entry)), default=-1)
        sys.path[:] = [*others[:end], *entries[:1], *others[end:], *entries[1:]]


def _is_standard(entry: str) -> bool:
    """Whether an entry of the path holds the standard library, or its compiled part."""
    library = Path(contextlib.__file__).parent
    return Path(entry) in (library, library / "lib-dynload")


def _guarded(reference: str, call: Callable[[], Any]) -> Any:
    """Run the user's code; an error becomes one line with its position in that code."""
    try:
        return call()
    except SystemExit as error:
        raise _bad_input(reference, f"{_where(reference, error)}called sys.exit({error.code})") from None
    except ModuleNotFoundError as error:
        if error.name is not None and _is_part_of(error.name, reference.rpartition(":")[0]):
            why = f"there is no module {error.name} in {Path.cwd()} or among the installed packages"
            raise _bad_input(reference, why) from None
        raise _failure(reference, error) from error
    except Exception as error:
        raise _failure(reference, error) from error


def _failure(reference: str, error: Exception) -> BadInput:
    if isinstance(error, SyntaxError):
        parts = [error.msg, (error.text or "").strip()]
    else:
        parts = str(error).splitlines()[:1]
    summary = ": ".join([type(error).__name__, *filter(None, parts)])
    return _bad_input(reference, f"{_where(reference, error)}{summary}")


def _is_part_of(name: str, source: str) -> bool:
    """Whether a missing module is the requested one or one of its parent packages."""
    return source == name or source.startswith(f"{name}.")


def _where(reference: str, error: BaseException) -> str:
    """The last line of the user's file in the traceback, or the line with the syntax error."""
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
    """The file of a reference, as tracebacks show it."""
    if source.endswith(".py"):
        return str(Path(source).resolve())
    with contextlib.suppress(Exception):  # finding a module imports its packages, which may have failed
        spec = importlib.util.find_spec(source)
        return None if spec is None else spec.origin
    return None


def _arguments(reference: str, factory: Callable[..., Any], available: dict[str, Any]) -> dict[str, Any]:
    """The available arguments that the function has as parameters."""
    unknown = _guarded(reference, lambda: _missing_arguments(factory))
    if unknown:
        raise _bad_input(
            reference, f"it requires {', '.join(unknown)}; available arguments: {', '.join(available)}"
        )
    wanted = inspect.signature(factory).parameters
    return {name: available[name] for name in wanted if name in available}


def _check_parts(reference: str, model: Any, data: Any, loss: Any) -> None:
    if not isinstance(model, nn.Module):
        raise _bad_input(reference, f"returned {_shape_of(model)} as model; expected a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise _bad_input(reference, "returned a model without parameters to train")
    if isinstance(data, Mapping | str) or not (hasattr(data, "__getitem__") or hasattr(data, "__iter__")):
        raise _bad_input(reference, f"returned {_shape_of(data)} as data; expected a data set or an iterable")
    if not (hasattr(data, "__len__") or hasattr(data, "__iter__")):
        raise _bad_input(reference, f"returned {_shape_of(data)} as data, which has no __len__")
    if not callable(loss):
        raise _bad_input(reference, f"returned {_shape_of(loss)} as loss; expected a function")


def _data(data: Any) -> Data:
    """Shard the data set of a DataLoader again, since its sampler does not know about ranks.

    A loader that does not batch yields ready batches and stays unchanged.
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
    """A function of parameters is used directly; an optimizer is rebuilt for the strategy's parameters."""
    if optimizer is None:
        return None
    if not isinstance(optimizer, torch.optim.Optimizer):
        if callable(optimizer):
            optimizer_factory: OptimizerFactory = optimizer
            return optimizer_factory
        expected = "expected an optimizer or a function that creates one from parameters"
        raise _bad_input(reference, f"returned {_shape_of(optimizer)} as optimizer; {expected}")
    _check_rebuildable(reference, model, optimizer)
    kind, group = type(optimizer), optimizer.param_groups[0]
    options = {
        name: group[name] for name in inspect.signature(kind).parameters if name in group and name != "params"
    }

    def make(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        rebuilt = kind(parameters, **options)
        copy_hooks(optimizer, rebuilt)
        return rebuilt

    return make


def _check_rebuildable(reference: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Only an optimizer with one group of all trained parameters can be rebuilt without guessing."""
    advice = "return a function that creates it from parameters instead"
    if len(optimizer.param_groups) > 1:
        why = f"an optimizer with {len(optimizer.param_groups)} parameter groups cannot be rebuilt; {advice}"
        raise _bad_input(reference, why)
    held = {id(parameter) for parameter in optimizer.param_groups[0]["params"]}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    held_count = sum(id(parameter) in held for parameter in trained)
    if held_count < len(trained):
        why = f"the optimizer holds {held_count} of the model's {len(trained)} trained parameters; {advice}"
        raise _bad_input(reference, why)


def _shape_of(value: Any) -> str:
    """The type of a value in a few words: `a tuple of 2`, `an int`, `None`."""
    if value is None:
        return "None"
    kind = type(value).__name__
    article = "an" if kind[0].lower() in "aeiou" else "a"
    size = f" of {len(value)}" if isinstance(value, tuple | list | dict) else ""
    return f"{article} {kind}{size}"
