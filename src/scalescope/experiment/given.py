"""Values as the user wrote them, in a flag or in a file, before they are parsed."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.errors import BadInput

MOST_VALUES = 20_000  # of one list; more than 10,000 trials need --yes


@dataclass(frozen=True, slots=True)
class Given:
    """One value as it was written, and where."""

    text: str
    origin: str


Entries = dict[str, tuple[Given, ...]]


def shown_key(name: str) -> str:
    """A key as messages print it: on one line, whatever it holds."""
    return name if name and name.isprintable() and len(name) <= 60 else repr(name)[:60]


def check_count(values: Sequence[Given]) -> None:
    """Refuse a list that is too long, before anything is done with its values."""
    if len(values) > MOST_VALUES:
        raise BadInput(f"{values[0].origin}: the list has more than {MOST_VALUES:,} values")
