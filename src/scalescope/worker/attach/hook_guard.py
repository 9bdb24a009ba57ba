"""HookGuard: an error of ours inside a hook never reaches the script."""

import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import torch

import scalescope

_OURS = (
    str(Path(scalescope.__file__).parent),
    str(Path(torch.__file__).parent),
    sysconfig.get_path("stdlib"),
    "<",  # frozen and made modules
)


class HookGuard:
    """`with guard:` stands around everything that we do inside a call of the script's.

    Signal handlers of the script may run there too, and what they raise is the script's affair.
    """

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or not isinstance(error, Exception) or not _is_ours(trace):
            return False
        self._on_error(error)
        return True


def _is_ours(trace: TracebackType | None) -> bool:
    """Whether an error was raised by our code, or by what we call."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return True
    file = trace.tb_frame.f_code.co_filename
    in_packages = any(part in file for part in ("site-packages", "dist-packages"))
    return file.startswith(_OURS) or in_packages or file.startswith(sys.base_prefix)
