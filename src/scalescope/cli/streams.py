"""Standard output and error as the command line needs them."""

import os
import signal
import sys


def replace_unencodable() -> None:
    """Print `?` for what the terminal's encoding lacks: a Latin-1 terminal must not cost a measurement."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def abandon_output() -> int:
    """Drop what is left to print because its reader has gone; returns the exit code for that."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter would complain at its end
    return 128 + signal.SIGPIPE
