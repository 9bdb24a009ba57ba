"""Exit codes, and the errors that end a command with one of them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of a command; a signal gives 128 plus its number."""

    OK = 0
    BAD_INPUT = 2
    CANNOT_RUN = 3
    WORKER_FAILED = 4
    HANG = 5
    INVALID = 6
    STORAGE = 7
    GATE_MISSED = 8
    SEARCH_OVER = 10  # no error: of commands that make the launches of a search in turn, the last


class ScalescopeError(Exception):
    """A problem the user can fix: its message is one line, printed without a traceback."""

    exit_code: int = 1


class BadInput(ScalescopeError):
    """A flag, an experiment file or an argument is wrong; nothing was launched."""

    exit_code = ExitCode.BAD_INPUT


class CannotRun(ScalescopeError):
    """This machine or environment cannot run the request."""

    exit_code = ExitCode.CANNOT_RUN


class TimedOut(ScalescopeError):
    """Something did not happen within its time limit."""

    exit_code = ExitCode.HANG


class StorageError(ScalescopeError):
    """Reading or writing the run folder failed."""

    exit_code = ExitCode.STORAGE


class Interrupted(BaseException):
    """A signal stopped the command; a BaseException, which `except Exception` does not catch."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum
        self.exit_code = 128 + signum
        self.kept = "nothing was measured yet"
        self.report: object = None  # the answer so far, where launches have one
