"""Card of your own workload, named FILE.py:FUNCTION or MODULE:FUNCTION."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from scalescope.catalog.traits import WorkloadTraits
from scalescope.errors import BadInput

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
        tree = ast.parse(path.read_bytes(), filename=source)
    except OSError as error:
        raise BadInput(f"workload {reference}: {source}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise BadInput(_syntax_problem(source, error)) from None
    _check_defined(reference, function, tree)


def _syntax_problem(source: str, error: SyntaxError | ValueError) -> str:
    """Where a file cannot be read as Python, with the text of that line."""
    if not isinstance(error, SyntaxError):
        return f"{source}: {error}"
    where = f"{source}:{error.lineno}" if error.lineno else source
    return ": ".join(filter(None, (where, error.msg, (error.text or "").strip())))


def _check_defined(reference: str, function: str, tree: ast.Module) -> None:
    """Name the functions that are there when the wanted one is not."""
    defined = [node.name for node in tree.body if isinstance(node, _DEFINITIONS)]
    loose = [node for node in tree.body if not isinstance(node, _DEFINITIONS)]
    if function in defined or any(_may_bind(node, function) for node in loose):
        return
    known = ", ".join(defined) or "none"
    raise BadInput(f"workload {reference}: {function} is not defined there; functions defined: {known}")


def _may_bind(node: ast.stmt, name: str) -> bool:
    """Whether a statement might bring the name, by assignment, import or a definition inside it."""
    names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    names |= {child.name for child in ast.walk(node) if isinstance(child, _DEFINITIONS)}
    aliases = {child.asname or child.name for child in ast.walk(node) if isinstance(child, ast.alias)}
    return name in names | aliases or "*" in aliases
