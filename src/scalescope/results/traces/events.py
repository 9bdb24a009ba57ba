"""Traces: where they lie, how they are read, and the names by which both sides know their events."""

import codecs
import functools
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from scalescope.results.stored.files import LARGEST_TRACE_BYTES, Unreadable, open_regular

TRACES = "traces"
_LARGEST_US = 1e18
_LONGEST_NUMBER = 40
_CHUNK_BYTES = 1 << 18
_LARGEST_VALUE = 16 << 20  # characters of one event, or of one fact about the job
_FACTS = ("distributedInfo", "deviceProperties")
_BETWEEN = re.compile(r"[\s,]*")
_SPACE = re.compile(r"\s*")
_NOT_A_TRACE = "not a Chrome trace: it has no list of events"
PREFIX = "scalescope."
INPUT, FORWARD, BACKWARD, OPTIMIZER, CLEAR = (
    f"{PREFIX}{name}" for name in ("input", "forward", "backward", "optimizer", "clear")
)
WHOLE_STEP = f"{PREFIX}whole_step"  # a user's own step, in place of its parts
STEP = "ProfilerStep#"  # and the number of a step: the mark by which HTA and TensorBoard know steps
COMPUTE = f"{PREFIX}compute"  # compute that is not an operation of torch: a paced model's sleep
_COMMUNICATION = re.compile(r"^gloo:|nccl", re.IGNORECASE)
_ROOTED = re.compile(r"broadcast|send|recv|^(gather|scatter|reduce)$|Kernel_Reduce_", re.IGNORECASE)


@functools.lru_cache(maxsize=65536)
def is_communication(name: str) -> bool:
    """Whether an event's name is that of a transfer between ranks."""
    return _COMMUNICATION.search(name) is not None


def is_transfer(name: str) -> bool:
    """Whether an event on the host is a transfer itself; NCCL's there only mark that a kernel was started."""
    return name.lower().startswith("gloo:")


def is_rooted(name: str) -> bool:
    """Whether ranks take part in a transfer for different times: a root leaves early, a sender before its
    receiver."""
    return _ROOTED.search(name) is not None


def trace_name(trial_id: str, launch: int, rank: int) -> str:
    """The name of a rank's trace inside a run folder; TensorBoard looks for files with this ending."""
    return f"{TRACES}/{trial_id}-{launch}-{rank}.pt.trace.json.gz"


def read_events(path: Path) -> list[dict[str, Any]]:
    """The complete events of a Chrome trace; ValueError if the file is not one."""
    return list(TraceFile(path))


class TraceFile:
    """A Chrome trace that is read in a stream: its complete events, and the known facts about its job.

    Files of large jobs have hundreds of megabytes, so one piece of text is held at a time, and events are
    handed on one by one. Unknown facts (user names, paths) are not kept.
    """

    def __init__(self, path: Path, most: int | None = None) -> None:
        self.facts: dict[str, Any] = {}  # complete when all events are read: some facts follow them
        self.refused = 0  # events without a usable time, or with values of other types
        self._path = path
        self._most = LARGEST_TRACE_BYTES if most is None else most  # unpacked

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """ValueError where the file is not a trace, or ends too early; OSError where it cannot be opened."""
        with os.fdopen(open_regular(self._path), "rb") as stream:
            text = _Text(_plain_text(stream, packed=self._path.suffix == ".gz", most=self._most))
            try:
                yield from self._events(text)
            except RecursionError:
                raise ValueError("not a Chrome trace: it is nested too deeply") from None

    def _events(self, text: "_Text") -> Iterator[dict[str, Any]]:
        first = text.peek()
        if first == "[":
            yield from self._complete(text)
            return
        has_events = False
        if first == "{":
            text.skip()
            while (name := text.next_name()) is not None:
                if name == "traceEvents" and text.peek() == "[":
                    has_events = True
                    yield from self._complete(text)
                else:
                    value = text.value()
                    if name in _FACTS:
                        self.facts[name] = value
        if not has_events:
            raise ValueError(_NOT_A_TRACE)

    def _complete(self, text: "_Text") -> Iterator[dict[str, Any]]:
        """The events of the list that begins here that have a time and a duration."""
        for event in text.items():
            if isinstance(event, dict) and event.get("ph") == "X" and "dur" in event:
                if _has_types(event):
                    yield event
                else:
                    self.refused += 1


class _Text:
    """JSON text that arrives in pieces, and a place in it."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces, self._text, self._at = pieces, "", 0
        self._scan = json.JSONDecoder().raw_decode

    def _more(self) -> bool:
        """Another piece, while what is held is not longer than a value may be."""
        if len(self._text) - self._at > _LARGEST_VALUE:
            raise Unreadable("not a Chrome trace: a value in it is too long, or not JSON")
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._text, self._at = self._text[self._at :] + piece, 0
        return True

    def peek(self) -> str:
        """The next character that is not a space."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def skip(self) -> None:
        """Past one character."""
        self._at += 1

    def value(self) -> Any:
        """The value that begins here."""
        self.peek()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except (StopIteration, ValueError):
                end = None  # cut off, or not JSON
            if end is not None and (end < len(self._text) or isinstance(value, dict | list | str)):
                self._at = end
                return value
            if not self._more():
                if end is None:
                    raise ValueError("the file is damaged: it ends too early, or is not JSON")
                self._at = end
                return value

    def next_name(self) -> str | None:
        """The name of the next member of an object; None at its end."""
        while (character := self.peek()) == ",":
            self.skip()
        if character == "}":
            return None
        name = self.value()
        if self.peek() != ":":
            raise ValueError("the file is damaged: it is not JSON")
        self.skip()
        return str(name)

    def items(self) -> Iterator[Any]:
        """The items of the list that begins here."""
        self.skip()
        scan = self._scan
        while True:
            match = _BETWEEN.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            try:
                value, self._at = scan(self._text, self._at)
            except (StopIteration, ValueError):
                if self._text[self._at : self._at + 1] == "]":
                    self.skip()
                    return
                if not self._more():
                    raise ValueError("the file is damaged: it ends too early, or is not JSON") from None
            else:
                yield value


def _plain_text(stream: BinaryIO, *, packed: bool, most: int) -> Iterator[str]:
    """The text of a file, unpacked; bytes that are not UTF-8 are replaced."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    unpacker = zlib.decompressobj(wbits=31) if packed else None
    size = 0
    while raw := stream.read(_CHUNK_BYTES):
        while raw:
            try:
                plain = raw if unpacker is None else unpacker.decompress(raw, 4 * _CHUNK_BYTES)
            except zlib.error as error:
                raise Unreadable(f"the file is damaged: {error}") from None
            raw = b"" if unpacker is None else unpacker.unconsumed_tail
            size += len(plain)
            if size > most:
                raise Unreadable(f"the file has more than {most} bytes when decompressed")
            yield decoder.decode(plain)
    if unpacker is not None and not unpacker.eof:
        raise Unreadable("the file is damaged: it ends too early")


def _has_types(event: dict[str, Any]) -> bool:
    """Whether an event has a time and a duration, and everything else the types that traces give it."""
    if not (_is_time(event.get("ts")) and _is_time(event["dur"]) and float(event["dur"]) >= 0.0):
        return False
    arguments = event.get("args")
    thread_is_plain = isinstance(event.get("tid"), int | float | str | None)
    return thread_is_plain and (arguments is None or isinstance(arguments, dict))


def _is_time(value: object) -> bool:
    """A number or the text of one, in microseconds, that stays one when it is added to others."""
    if type(value) is float or type(value) is int:
        return -_LARGEST_US <= value <= _LARGEST_US
    if isinstance(value, str) and len(value) <= _LONGEST_NUMBER:
        try:
            value = float(value)
        except ValueError:
            return False
    return isinstance(value, int | float) and -_LARGEST_US <= value <= _LARGEST_US
