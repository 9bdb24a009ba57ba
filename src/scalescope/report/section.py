"""Section: a piece of a report as data; renderers decide how it looks."""

import shlex
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells as text. Columns are right-aligned unless named in `left`; those in `optional` may be left
    out, one after another as named, where the page is too narrow for all; a terminal shows those in
    `expert` on request (-v)."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[str] = frozenset()
    optional: tuple[str, ...] = ()
    expert: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCommand:
    """A command that a reader can run, and what it is for."""

    label: str
    argv: tuple[str, ...] = ()  # empty where there is only the label to say
    changes_job: bool = False  # it trains something else, such as another batch size

    @property
    def command(self) -> str:
        """What to type into a shell."""
        return shlex.join(self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFinding:
    """A finding in one sentence, and the commands to try; renderers number them."""

    text: str
    commands: tuple[ShownCommand, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, a table, a piece of Python, lines of text, findings and commands, in that order; each may be
    missing."""

    title: str | None = None
    table: Table | None = None
    code: str = ""
    lines: tuple[str, ...] = ()
    findings: tuple[ListedFinding, ...] = ()
    commands: tuple[ShownCommand, ...] = ()
    details: tuple[str, ...] = ()  # shown on request (-v)
