"""Where multiprocessing keeps its sockets: ranks end without cleaning up, so the launcher must."""

from pathlib import Path

_LONGEST_SOCKET_PATH = 107  # of the system, in bytes
_SOCKET_NAME = "/listener-xxxxxxxx"


def use_directory(directory: Path) -> None:
    """Let this process and the data-loader workers it starts use a directory, where it is there.

    TMPDIR stays what it is: caches that users and torch keep there are meant to last.
    """
    import multiprocessing.process  # takes its time; torch needs it too

    fits = len(str(directory).encode()) + len(_SOCKET_NAME) <= _LONGEST_SOCKET_PATH
    configuration = getattr(multiprocessing.process.current_process(), "_config", None)
    if fits and directory.is_dir() and isinstance(configuration, dict):
        configuration["tempdir"] = str(directory)
