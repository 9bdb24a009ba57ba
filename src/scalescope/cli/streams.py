"""Output streams, interruption and the end of the command line."""

import codecs
import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TextIO, cast

from scalescope.cli.leaving import leave_at_once
from scalescope.errors import ExitCode, Interrupted
from scalescope.report.render.clean_stream import CleanStream
from scalescope.results.printable import IN_ASCII

# ---- Signals while measuring: the first asks to stop and keeps what is done, the second ends at once; alarms


_SHOW_CURSOR = b"\x1b[?25h"
# SIGUSR1 is how schedulers warn a job that its time is up or that it is preempted.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@contextlib.contextmanager
def keyboard_interrupts() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt inside, where the entry point would have it end the process."""
    if signal.getsignal(signal.SIGINT) is not leave_at_once:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, leave_at_once)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first stopping signal into `Interrupted`, raised where the main thread is."""
    caught: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if caught:  # ranks and zygote are bound to our life and go with us
            if sys.stderr.isatty():
                os.write(2, _SHOW_CURSOR)  # the progress bar hides it
            os._exit(128 + number)
        caught.append(number)
        raise Interrupted(number)

    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- Standard output and error as the command line needs them


_ASCII = "ascii"
# The same by another name: click takes a stream of ASCII for a broken one, and writes UTF-8 to it.
_PLAIN = "scalescope_ascii"


@contextlib.contextmanager
def clean_output() -> Iterator[None]:
    """Let everything that is printed meanwhile pass through clean streams; nested, it changes nothing."""
    before = (sys.stdout, sys.stderr)
    install_clean_output()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def install_clean_output() -> None:
    """Replace standard output and error for the rest of the process."""
    _open_closed_descriptors()
    sys.stdout, sys.stderr = _clean(sys.stdout, 1), _clean(sys.stderr, 2)


def code_after_output(code: int) -> int:
    """The exit code, once everything is written; a failure of the command itself outweighs lost output."""
    sys.stdout.flush()
    sys.stderr.flush()
    error = sys.stdout.error if isinstance(sys.stdout, CleanStream) else None
    if error is None:
        return code
    if error.errno == errno.EPIPE:  # its reader has seen enough
        return code or 128 + signal.SIGPIPE
    print(f"scalescope: the output cannot be written: {error.strerror}", file=sys.stderr, flush=True)
    return code or ExitCode.STORAGE


def print_json(value: object) -> None:
    """Print JSON without replacing characters: a clean stream would break it."""
    import json

    print(json.dumps(value, indent=1).replace("\x7f", "\\u007f"))


def _open_closed_descriptors() -> None:
    """Give closed standard streams a descriptor: the next file would get it, and what ranks print with it."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def _clean(stream: TextIO | None, descriptor: int) -> TextIO:
    """The stream with clean text, in the terminal's encoding; one that was closed leads nowhere."""
    if isinstance(stream, CleanStream):
        return cast(TextIO, stream)
    if stream is None:
        stream = os.fdopen(os.dup(descriptor), "w", encoding="utf-8", errors=IN_ASCII)
    elif hasattr(stream, "reconfigure"):  # what the encoding lacks is replaced, such as - for a minus sign
        is_ascii = codecs.lookup(stream.encoding).name == _ASCII
        stream.reconfigure(encoding=_PLAIN if is_ascii else stream.encoding, errors=IN_ASCII)
    return cast(TextIO, CleanStream(stream))


def _plain_ascii(name: str) -> codecs.CodecInfo | None:
    if name != _PLAIN:
        return None
    ascii_codec = codecs.lookup(_ASCII)
    return codecs.CodecInfo(
        ascii_codec.encode,
        ascii_codec.decode,
        ascii_codec.streamreader,
        ascii_codec.streamwriter,
        ascii_codec.incrementalencoder,
        ascii_codec.incrementaldecoder,
        name=_PLAIN,
    )


codecs.register(_plain_ascii)
