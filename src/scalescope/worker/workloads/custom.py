"""A user's workload: a function that returns a model, its data and its loss, and optionally an optimizer or a
step."""

import contextlib
import importlib
import importlib.util
import inspect
import os
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
from scalescope.job import Job
from scalescope.results.provenance import WORKLOAD_FILE, WORKLOAD_SHA256, sha256_of
from scalescope.worker.machine.model_room import built_within, room_of
from scalescope.worker.training.optimizers import GivenOptimizer, NamedGroup, OptimizerRebuild, named_groups
from scalescope.worker.training.own_step import arranged, members_of
from scalescope.worker.training.step import BuildContext, Data, OptimizerFactory, OwnStep, Workload

_EXPECTED = "(model, data, loss), (model, data, loss, optimizer) or a scalescope.Job"
_STEP = "step(model, batch, optimizers)"


def build(options: Custom, device: torch.device, context: BuildContext) -> Workload:
    """Call the user's function and convert what it returns to a workload."""
    reference = context.reference
    factory = _factory(reference)
    values = (context.rank, context.world_size, context.batch_size, device)
    available = dict(zip(ARGUMENTS, values, strict=True))
    arguments = _arguments(reference, factory, available)
    room = room_of(os.environ)
    returned = _guarded(reference, lambda: built_within(room, lambda: factory(**arguments)))
    job = _job(reference, returned)
    models = _models(reference, job)
    _check_parts(reference, models, job)
    model = job.model if isinstance(job.model, nn.Module) else nn.ModuleDict(_named(job.model))
    model.to(device)
    return Workload(
        model=model,
        data=_data(job.data),
        loss=job.loss or _no_loss,
        make_optimizer=None if job.step else _optimizer_factory(reference, model, job.optimizer),
        own_step=None if job.step is None else _own_step(reference, model, job),
        counters=_file_counters(reference),
    )


def _job(reference: str, returned: Any) -> Job:
    """What a function returned, as a job."""
    if isinstance(returned, Job):
        return returned
    if not isinstance(returned, tuple) or len(returned) not in (3, 4):
        raise _bad_input(reference, f"returned {_shape_of(returned)}; expected {_EXPECTED}")
    model, data, loss, *optimizer = returned
    return Job(model=model, data=data, loss=loss, optimizer=optimizer[0] if optimizer else None)


def _no_loss(outputs: Any, targets: Any) -> Any:
    raise BadInput("this workload defines its own step and returns no loss")


def _file_counters(reference: str) -> dict[str, str]:
    """The file that the function is in, and its SHA-256; nothing of a module without a file."""
    file = _file_of(reference.rpartition(":")[0])
    sha256 = None if file is None else sha256_of(Path(file))
    return {} if file is None or sha256 is None else {WORKLOAD_FILE: file, WORKLOAD_SHA256: sha256}


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


def _check_parts(reference: str, models: list[nn.Module], job: Job) -> None:
    data, loss, step = job.data, job.loss, job.step
    if not any(parameter.requires_grad for model in models for parameter in model.parameters()):
        raise _bad_input(reference, "returned a model without parameters to train")
    if isinstance(data, Mapping | str) or not (hasattr(data, "__getitem__") or hasattr(data, "__iter__")):
        raise _bad_input(reference, f"returned {_shape_of(data)} as data; expected a data set or an iterable")
    if not (hasattr(data, "__len__") or hasattr(data, "__iter__")):
        raise _bad_input(reference, f"returned {_shape_of(data)} as data, which has no __len__")
    if not callable(loss) and (loss is not None or step is None):
        raise _bad_input(reference, f"returned {_shape_of(loss)} as loss; expected a function")
    if step is not None:
        _check_step(reference, step)


def _models(reference: str, job: Job) -> list[nn.Module]:
    """The models of a job; several require a step."""
    if isinstance(job.model, nn.Module):  # a Sequential is a model, not a list of them
        return [job.model]
    if job.step is None or not isinstance(job.model, Mapping | tuple | list):
        why = "a torch.nn.Module" if job.step is None else "a torch.nn.Module, or a dict or tuple of them"
        raise _bad_input(reference, f"returned {_shape_of(job.model)} as model; expected {why}")
    models = members_of(job.model)
    for model in models:
        if not isinstance(model, nn.Module):
            raise _bad_input(reference, f"returned {_shape_of(model)} among its models; expected modules")
    return models


def _named(models: Any) -> dict[str, nn.Module]:
    """Several models by the user's names, or by their position."""
    named = models.items() if isinstance(models, Mapping) else enumerate(models)
    return {str(name): model for name, model in named}


def _check_step(reference: str, step: Any) -> None:
    """Refuse a step that cannot be called as one."""
    if not callable(step):
        raise _bad_input(reference, f"returned {_shape_of(step)} as step; expected {_STEP}")
    with contextlib.suppress(ValueError):  # it has no signature
        try:
            inspect.signature(step).bind(None, None, None)
        except TypeError as error:
            raise _bad_input(reference, f"the step cannot be called as {_STEP}: {error}") from None


def _own_step(reference: str, model: nn.Module, job: Job) -> OwnStep:
    """The user's own step, with the optimizers as strategies need them."""
    assert job.step is not None
    optimizers = members_of(job.optimizer)
    is_several = isinstance(job.optimizer, Mapping | tuple | list)
    if is_several and (not optimizers or None in optimizers):
        raise _bad_input(
            reference, f"returned {_shape_of(job.optimizer)} as optimizer; one of them is missing"
        )
    prepared = [_prepared(reference, model, optimizer) for optimizer in optimizers]
    functions = [optimizer for optimizer in prepared if not isinstance(optimizer, GivenOptimizer)]
    if is_several and functions and len(optimizers) != len(members_of(job.model)):
        why = f"returned {len(optimizers)} optimizers, models: {len(members_of(job.model))}"
        raise _bad_input(reference, f"{why}; with functions of parameters there must be one for each model")
    return OwnStep(run=job.step, models=job.model, optimizers=arranged(job.optimizer, prepared))


def _prepared(reference: str, model: nn.Module, optimizer: Any) -> Any:
    """An optimizer with the names of its parameters; a function of parameters, or None, unchanged."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return GivenOptimizer(optimizer=optimizer, groups=_groups(reference, optimizer, model))
    _check_optimizer(reference, optimizer)
    return optimizer


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
    """A function of parameters is used directly; an optimizer is built anew for the strategy's parameters."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        _check_optimizer(reference, optimizer)
        made: OptimizerFactory | None = optimizer
        return made
    _groups(reference, optimizer, model)
    return OptimizerRebuild.of(optimizer, model)


def _groups(reference: str, optimizer: torch.optim.Optimizer, model: nn.Module) -> tuple[NamedGroup, ...]:
    """The groups of an optimizer by name, or whose workload is wrong."""
    try:
        return named_groups(optimizer, model)
    except BadInput as error:
        raise _bad_input(reference, str(error)) from None


def _check_optimizer(reference: str, optimizer: Any) -> None:
    if optimizer is not None and not callable(optimizer):
        expected = "expected an optimizer or a function that creates one from parameters"
        raise _bad_input(reference, f"returned {_shape_of(optimizer)} as optimizer; {expected}")


def _shape_of(value: Any) -> str:
    """The type of a value in a few words: `a tuple of 2`, `an int`, `None`."""
    if value is None:
        return "None"
    kind = type(value).__name__
    article = "an" if kind[0].lower() in "aeiou" else "a"
    size = f" of {len(value)}" if isinstance(value, tuple | list | dict) else ""
    return f"{article} {kind}{size}"
