"""Reads a verb's own flags back from a stored run: `--levers bucket_cap_mb --combine`."""

from collections.abc import Mapping, Sequence


def read_flags(flags: Sequence[str]) -> dict[str, str | bool]:
    """Flags by their names without dashes; a flag that no value follows is a switch."""
    values: dict[str, str | bool] = {}
    words = list(flags)
    while words:
        name, separator, value = words.pop(0).removeprefix("--").partition("=")
        if separator:
            values[name] = value
        elif words and not words[0].startswith("--"):
            values[name] = words.pop(0)
        else:
            values[name] = True
    return values


def deciding_flags(flags: Sequence[str], may_differ: Sequence[str]) -> dict[str, str | bool]:
    """The flags without those of these names, which do not change what is measured."""
    return {name: value for name, value in read_flags(flags).items() if name not in may_differ}


def written_flags(values: Mapping[str, str | bool]) -> tuple[str, ...]:
    """The flags as they are typed; `read_flags` reads them back."""
    return tuple(f"--{name}" if value is True else f"--{name}={value}" for name, value in values.items())
