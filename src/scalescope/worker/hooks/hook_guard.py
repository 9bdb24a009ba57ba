"""HookGuard: an error inside a hook of ours never reaches the script. Hooks: what is undone at the end."""

import signal
from collections.abc import Callable, Iterator
from types import CodeType, TracebackType


class HookGuard:
    """`with guard:` stands around everything that we do inside a call of the script's.

    Signal handlers of the script may run there too, and what they raise is meant to end its training.
    """

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or not isinstance(error, Exception) or _is_of_signal_handler(trace):
            return False
        self._on_error(error)
        return True


class Hooks:
    """Something of torch or of the script that is replaced, until `remove`."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def remove(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()


def _is_of_signal_handler(trace: TracebackType | None) -> bool:
    handlers = set(_signal_handlers())
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _signal_handlers() -> Iterator[CodeType]:
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        for function in (handler, getattr(type(handler), "__call__", None)):  # noqa: B004
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                yield code
