"""Reads a verb's own flags back from a stored run: `--levers bucket_cap_mb --combine`."""

from collections.abc import Sequence


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
