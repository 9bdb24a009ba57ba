"""Standard output and error as the command line needs them."""

import codecs
import os
import signal
import sys

from scalescope.results.printable import IN_ASCII

_ASCII = "ascii"
# The same by another name: click takes a stream of ASCII for a broken one, and writes UTF-8 to it.
_PLAIN = "scalescope_ascii"


def replace_unencodable() -> None:
    """Write what the terminal's encoding lacks with other characters, such as - for a minus sign."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            is_ascii = codecs.lookup(stream.encoding).name == _ASCII
            stream.reconfigure(encoding=_PLAIN if is_ascii else stream.encoding, errors=IN_ASCII)


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


def abandon_output() -> int:
    """Drop what is left to print because its reader has gone; returns the exit code for that."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter would complain at its end
    return 128 + signal.SIGPIPE
