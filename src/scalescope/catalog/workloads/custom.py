"""Card of your own workload, named FILE.py:FUNCTION or MODULE:FUNCTION."""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scalescope.catalog.setting import nearest
from scalescope.catalog.traits import WorkloadTraits
from scalescope.errors import BadInput

ARGUMENTS = ("rank", "world_size", "batch_size", "device")  # what a workload may ask for
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Custom(WorkloadTraits):
    """A function of yours that returns a model, its data and its loss."""

    counts_operations = True
    brings_data = True
    takes = ("own",)
    has_convolutions = has_attention = True  # it may: unknown before it is built
    # PyTorch's own defaults for DDP: the owner wants the job reproduced, not improved.
    defaults = {  # noqa: RUF012
        "data": "own",
        "batch_size": 32,
        "bucket_cap_mb": None,
        "static_graph": False,
        "broadcast_buffers": True,
        "gradient_as_bucket_view": False,
    }

    @staticmethod
    def check_name(name: str) -> None:
        """Refuse what can be seen to fail without running it."""
        check_reference(name)


def file_of(reference: str) -> Path | None:
    """The file of a workload that is given as FILE.py:FUNCTION; None of a built-in one or a module."""
    source, _, _ = reference.rpartition(":")
    return Path(source) if source.endswith(".py") else None


def source_and_function(reference: str) -> tuple[str, str]:
    """The whole path of the file, or the module, and the function of a workload."""
    source, _, function = reference.rpartition(":")
    file = file_of(reference)
    return source if file is None else str(file.resolve()), function


def in_file(reference: str, file: Path) -> str:
    """The function of the same name in another file."""
    _, _, function = reference.rpartition(":")
    return f"{file}:{function}"


def check_reference(reference: str) -> None:
    """Whether the file is there, can be parsed and seems to have the function."""
    source, _, function = reference.rpartition(":")
    if not _FUNCTION.fullmatch(function):
        raise BadInput(
            f"workload {reference}: {function!r} is not a function name; expected FILE.py:FUNCTION"
        )
    if not source.endswith(".py"):
        if not _MODULE.fullmatch(source):
            raise BadInput(f"workload {reference}: {source!r} is neither a FILE.py nor a module name")
        return
    path = Path(source)
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe would wait for ever
            raise BadInput(f"workload {reference}: {source}: not a regular file")
        tree = ast.parse(path.read_bytes(), filename=source)
    except OSError as error:
        raise BadInput(f"workload {reference}: {source}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise BadInput(_syntax_problem(source, error)) from None
    except (RecursionError, MemoryError):
        raise BadInput(f"workload {reference}: {source}: nested too deeply for Python to read") from None
    _check_defined(reference, function, tree)


def _syntax_problem(source: str, error: SyntaxError | ValueError) -> str:
    """Where a file cannot be read as Python, with the text of that line."""
    if not isinstance(error, SyntaxError):
        return f"{source}: {error}"
    where = f"{source}:{error.lineno}" if error.lineno else source
    return ": ".join(filter(None, (where, error.msg, (error.text or "").strip())))


def _check_defined(reference: str, function: str, tree: ast.Module) -> None:
    """Refuse a function that the file does not have."""
    defined = [node.name for node in tree.body if isinstance(node, _DEFINITIONS)]
    loose = [node for node in tree.body if not isinstance(node, _DEFINITIONS)]
    if function in defined or any(_may_bind(node, function) for node in loose):
        return
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    workloads = [node.name for node in functions if _can_be_called(node)]
    raise missing_function(reference, [node.name for node in functions], workloads)


def missing_function(reference: str, functions: Iterable[str], workloads: Iterable[str]) -> BadInput:
    """The error for a function that is not there: the closest one, and what could be a workload."""
    source, _, function = reference.rpartition(":")
    meant = nearest(function, functions)
    known = f"functions that could be workloads: {', '.join(workloads) or 'none'}"
    hint = f"{meant} ({known})" if meant else f"; {known}"
    return BadInput(f"workload {reference}: {source} has no function {function}{hint}")


def _can_be_called(function: ast.FunctionDef) -> bool:
    """Whether a function requires no more than what a workload is given."""
    plain = [*function.args.posonlyargs, *function.args.args]
    required = plain[: len(plain) - len(function.args.defaults)]
    keywords = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    required += [argument for argument, default in keywords if default is None]
    return {argument.arg for argument in required} <= set(ARGUMENTS)


def _may_bind(node: ast.stmt, name: str) -> bool:
    """Whether a statement might bring the name, by assignment, import or a definition inside it."""
    names = {
        child.id
        for child in ast.walk(node)
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)
    }
    names |= {child.name for child in ast.walk(node) if isinstance(child, _DEFINITIONS)}
    aliases = {child.asname or child.name for child in ast.walk(node) if isinstance(child, ast.alias)}
    return name in names | aliases or "*" in aliases
