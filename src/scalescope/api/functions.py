"""How ranks find a function that was passed from Python: by its file and its name, as `--workload` does."""

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from scalescope.errors import BadInput

Build = Callable[..., Any] | str  # a function at the top level of a file, FILE.py:FUNCTION, or a workload

_ORIGIN = "build="
_CELL_FOLDER = "ipykernel_"  # where ipykernel says that cells lie; a debugger really puts them there


def reference_of(build: Any) -> str:
    """FILE.py:FUNCTION or MODULE:FUNCTION of a function; text is passed on unchanged."""
    if isinstance(build, str):
        return build
    kind = _why_not_importable(build)
    if kind is not None:
        raise _refused(build, f"{kind} cannot be imported by the ranks")
    assert isinstance(build, FunctionType)
    file = _file_of(build)
    if file is None:
        raise _refused(build, f"{build.__name__} was defined interactively, and ranks cannot import it")
    module = sys.modules.get(build.__module__)
    is_bound = getattr(module, build.__name__, None) is build
    if module is None or not is_bound:
        raise _refused(build, f"{build.__module__}.{build.__name__} is not the function that was passed")
    return f"{_source_of(module, file)}:{build.__name__}"


def _why_not_importable(build: Any) -> str | None:
    """What `build` is, where no name at the top level of a module stands for it; None of a function."""
    if isinstance(build, functools.partial):
        return "a functools.partial"
    if inspect.ismethod(build):
        return "a method"
    if not isinstance(build, FunctionType):
        return f"an object of type {type(build).__name__}"
    if build.__name__ == "<lambda>":
        return "a lambda"
    if "<locals>" in build.__qualname__:
        return f"{build.__name__}, which is defined inside another function,"
    if build.__qualname__ != build.__name__:
        return f"{build.__qualname__}, which is defined inside a class,"
    return None


def _file_of(build: FunctionType) -> Path | None:
    """The file that a function was written in; None of a notebook, a prompt or `python -c`."""
    written = inspect.unwrap(build)
    file = Path(getattr(written, "__code__", build.__code__).co_filename).resolve()
    is_cell = any(part.startswith(_CELL_FOLDER) for part in file.parts)
    return None if is_cell or file.suffix != ".py" or not file.is_file() else file


def _source_of(module: ModuleType, written: Path) -> str:
    """What ranks import: of a package its module, for relative imports; otherwise the file."""
    if module.__spec__ is not None and module.__package__:
        return module.__spec__.name  # under `python -m` the module is __main__, and this its own name
    named = getattr(module, "__file__", None)  # a decorator may have been written elsewhere
    file = written if named is None else Path(named).resolve()
    return str(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)


def _refused(build: Any, why: str) -> BadInput:
    name = getattr(build, "__name__", "build")
    name = name if name.isidentifier() else "build"
    return BadInput(
        f"{_ORIGIN}: {why}; write it to a file, for example with %%writefile my_job.py, "
        f"and pass 'my_job.py:{name}'"
    )
