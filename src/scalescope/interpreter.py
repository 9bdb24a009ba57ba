"""How interpreters are started: a `random.py` or `torch.py` in the working folder must not replace others.

Only os and sys are imported here, because pathlib would be searched in the working folder first.
"""

import os
import sys

_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120


def python_module(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours, without the working folder on its path."""
    safe_path = () if _is_in_sources() else ("-P",)
    return [sys.executable, *safe_path, "-m", module, *arguments]


def forget_working_folder() -> None:
    """Take the working folder off this process's path, where `python -m` has put it first."""
    if not sys.flags.safe_path and not _is_in_sources() and sys.path[:1] == [_working_folder()]:
        del sys.path[0]


def _is_in_sources() -> bool:
    """Whether the working folder is where scalescope itself is imported from."""
    return _working_folder() == _PACKAGE_PARENT


def _working_folder() -> str | None:
    """Its path; None where it was removed."""
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return None
