"""Whether a training script can run on several ranks, by its text: it is read, and never executed."""

import ast
import itertools
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from scalescope.results.stored.regular_files import read_bytes

_MOST_FILES = 30  # the script and the modules beside it that it imports
_MOST_BYTES = 1 << 20  # of each
# What joins a process group, or has somebody join one: any of these is enough.
_NAMES = (
    *("init_process_group", "init_device_mesh", "DistributedDataParallel", "FullyShardedDataParallel"),
    *("fully_shard", "Accelerator", "Fabric"),
)
_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
_PACKAGES = ("accelerate", "lightning", "pytorch_lightning", "deepspeed", "horovod", "composer", "torchtitan")
_TRAINER = "Trainer"  # of transformers, trl, lightning: it joins by itself
_SPAWNS = "spawn"  # of torch.multiprocessing
_OWN_LOOP = "backward"  # whoever calls it has a training loop of its own


def script_of(words: Sequence[str], folder: Path) -> Path | None:
    """The Python file that a command runs, from the folder it is started in; None where it is not known."""
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        if word.endswith(".py"):
            return folder / word
        if word == "-m" and not following.startswith("torch."):  # which is torchrun
            return _file_of(following, folder)
    return None


def obstacle(words: Sequence[str], folder: Path) -> str | None:
    """Why torchrun cannot start several ranks of a command, as a clause; None where it may.

    Only a script with a training loop of its own can be said to lack something: of others nothing is known.
    """
    script = script_of(words, folder)
    trees = [] if script is None else list(_trees(script))
    if script is None or None in trees:
        return None
    names = {name for tree in trees if tree is not None for name in _names(tree)}
    if _SPAWNS in names:
        return f"{script.name} starts its ranks itself: write {{world_size}} where it takes their number"
    joins = names & {*_NAMES, *_VARIABLES, *_PACKAGES} or any(name.endswith(_TRAINER) for name in names)
    if joins or _OWN_LOOP not in names:
        return None
    return (
        f"{script.name} does not call torch.distributed.init_process_group, so several ranks of it would be "
        "independent trainings"
    )


def _trees(script: Path) -> Iterator[ast.Module | None]:
    """The script and the modules beside it that it imports; None for what cannot be read, or is too much."""
    waiting, seen = [script], {script}
    while waiting:
        tree = _parsed(waiting.pop(0)) if len(seen) <= _MOST_FILES else None
        yield tree
        imported = set() if tree is None else set(_imported(tree))
        files = {path for name in imported if (path := _file_of(name, script.parent)) is not None}
        waiting += sorted(files - seen)
        seen |= files


def _parsed(file: Path) -> ast.Module | None:
    try:
        with warnings.catch_warnings(action="ignore"):  # about the script's own text
            return ast.parse(read_bytes(file, _MOST_BYTES))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file_of(module: str, folder: Path) -> Path | None:
    """The file of a module below a folder."""
    base = folder.joinpath(*module.split("."))
    candidates = (base.with_suffix(".py"), base / "__main__.py", base / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def _names(tree: ast.Module) -> Iterator[str]:
    """What a script names: functions and attributes, what it imports, and its texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield from (node.name.split(".")[0], node.name.split(".")[-1])
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
