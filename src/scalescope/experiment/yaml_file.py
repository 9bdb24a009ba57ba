"""Reads an experiment file: plain YAML mappings, every value kept as text with its line.

It works on the parser's events instead of loaded objects. So duplicate keys, tags and aliases are seen and
refused, nesting is bounded before it can exhaust anything, and no value is typed by YAML's rules.
"""

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path

import yaml

from scalescope.errors import BadInput
from scalescope.experiment.given import Entries, Given, check_count, shown_key

_LARGEST_FILE_BYTES = 1 << 20
_FAST_CHARACTERS = 1 << 16
_MOST_KEYS = 1_000
_GROUPS = ("model", "training", "data")  # headings people write; their keys are settings like any other
_NAMING = ("env", "vary")  # headings below which people write names of their own
_BOTH = ("data",)  # a heading where lines stand below it, a setting where it has a value
_NAMED = {"data": "data", "model": "workload"}  # what `name` means below a heading; elsewhere the run's


def read_experiment_file(path: Path) -> Entries:
    """All settings of a file by key; a list is several values.

    Environment variables read `env.NAME`, the values of a command's placeholders `vary.NAME`.
    """
    entries: Entries = {}
    events = _events(path)
    opening = next(events, None)
    if opening is None:
        raise BadInput(f"{path}: the file is empty; expected lines such as 'world_size: [1, 2]'")
    if not isinstance(opening, yaml.MappingStartEvent):
        raise BadInput(f"{path}:{_line(opening)}: expected 'key: value' lines at the top level")
    _read_mapping(path, events, "", entries)
    next(events, None)  # lets the reader see a second document
    if not entries:
        raise BadInput(f"{path}: the file contains no settings")
    return entries


def _read_mapping(path: Path, events: Iterator[yaml.Event], group: str, entries: Entries) -> None:
    groups: set[str] = set()
    for key in events:
        if isinstance(key, yaml.MappingEndEvent):
            return
        if not isinstance(key, yaml.ScalarEvent):
            raise BadInput(f"{path}:{_line(key)}: expected a plain word as key")
        value = next(events)
        where = f"{path}:{_line(key)}: {shown_key(key.value)}"
        is_group = not group and key.value in (*_GROUPS, *_NAMING)
        if isinstance(value, yaml.MappingStartEvent):
            if not is_group:
                allowed = ", ".join((*_GROUPS, *_NAMING))
                raise BadInput(f"{where}: only {allowed} may contain keys")
            if key.value in groups or key.value in entries:
                raise BadInput(f"{where}: given twice")
            groups.add(key.value)
            _read_mapping(path, events, key.value, entries)
            continue
        if is_group and key.value not in _BOTH:
            raise BadInput(f"{where}: expected 'key: value' lines below it")
        if key.value in groups:
            raise BadInput(f"{where}: given twice")
        if len(entries) >= _MOST_KEYS:
            raise BadInput(f"{where}: an experiment file has at most {_MOST_KEYS:,} keys")
        name = _name_of(group, key.value)
        if name in entries:
            first = entries[name][0].origin
            raise BadInput(f"{where}: given twice (first at {first})")
        entries[name] = _read_values(path, name, value, events)


def _name_of(group: str, key: str) -> str:
    """The setting that a key stands for under a heading."""
    if group in _NAMING:
        return f"{group}.{key}"
    return _NAMED.get(group, key) if key == "name" else key


def _read_values(path: Path, name: str, value: yaml.Event, events: Iterator[yaml.Event]) -> tuple[Given, ...]:
    if isinstance(value, yaml.ScalarEvent):
        return (_given(path, name, value),)
    values = []
    for item in events:
        if isinstance(item, yaml.SequenceEndEvent):
            break
        if not isinstance(item, yaml.ScalarEvent):
            raise BadInput(f"{path}:{_line(item)}: {shown_key(name)}: a list may contain plain values only")
        values.append(_given(path, name, item))
        check_count(values)
    if not values:
        raise BadInput(f"{path}:{_line(value)}: {shown_key(name)}: the list is empty")
    return tuple(values)


def _given(path: Path, name: str, event: yaml.ScalarEvent) -> Given:
    origin = f"{path}:{_line(event)}: {shown_key(name)}"
    if event.value == "" and not event.style:
        raise BadInput(f"{origin}: has no value")
    return Given(event.value, origin)


def _events(path: Path) -> Iterator[yaml.Event]:
    documents = 0
    try:
        for event in _parsed(_text(path)):
            documents += isinstance(event, yaml.DocumentStartEvent)
            if documents > 1:
                raise BadInput(f"{path}:{_line(event)}: expected one YAML document, found a second")
            if (tag := getattr(event, "tag", None)) is not None:
                raise BadInput(f"{path}:{_line(event)}: tags ({tag!r}) are not allowed")
            if getattr(event, "anchor", None) is not None:
                raise BadInput(f"{path}:{_line(event)}: anchors and aliases are not allowed")
            if isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                yield event
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}" if mark else f"{path}"
        raise BadInput(f"{where}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise BadInput(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None
    except (ValueError, OverflowError) as error:  # PyYAML lets escapes such as "\U00110000" through to chr()
        raise BadInput(f"{path}: not valid YAML: {error}") from None


def _parsed(text: str) -> Iterator[yaml.Event]:
    """The events of a text, by the parser in C where it is installed: it is 20 times as fast.

    What that one refuses is read again by the parser in Python, which says more clearly what is wrong.
    """
    fast = getattr(yaml, "CSafeLoader", None)
    if fast is not None and len(text) <= _FAST_CHARACTERS:
        with contextlib.suppress(yaml.YAMLError, ValueError):
            return iter(list(yaml.parse(text, Loader=fast)))
    return iter(yaml.parse(text, Loader=yaml.SafeLoader))


def _text(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"{path}: not a regular file")
        if status.st_size > _LARGEST_FILE_BYTES:
            raise BadInput(
                f"{path}: an experiment file has at most {_LARGEST_FILE_BYTES} bytes, got {status.st_size}"
            )
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 text (byte {error.start})") from None


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None
    return int(event.start_mark.line) + 1
