"""Errors that end a command: each carries the exit code that DESIGN and the help text promise."""


class ScalescopeError(Exception):
    """A problem a person can act on: its message is one line, printed without a traceback."""

    exit_code = 1


class BadInput(ScalescopeError):
    """A flag, an experiment file or an argument is wrong; nothing was launched."""

    exit_code = 2


class CannotRun(ScalescopeError):
    """This machine or environment cannot do what was asked."""

    exit_code = 3


class WorkerFailed(ScalescopeError):
    """At least one launch failed."""

    exit_code = 4


class Hang(ScalescopeError):
    """Ranks stopped making progress and were ended."""

    exit_code = 5


class InvalidResult(ScalescopeError):
    """A result cannot be used: wrong numbers, a broken file, or instability under --strict."""

    exit_code = 6


class StorageError(ScalescopeError):
    """Reading or writing the run folder failed."""

    exit_code = 7


class Interrupted(BaseException):
    """A signal asked the command to stop; BaseException so that no `except Exception` swallows it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum
        self.exit_code = 128 + signum
        self.kept = "nothing was measured yet"
