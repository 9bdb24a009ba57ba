"""Values as the user wrote them, in a flag or in a file, before they are parsed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Given:
    """One value as it was written, and where."""

    text: str
    origin: str


Entries = dict[str, tuple[Given, ...]]


def shown_key(name: str) -> str:
    """A key as messages print it: on one line, whatever it holds."""
    return name if name and name.isprintable() and len(name) <= 60 else repr(name)[:60]
