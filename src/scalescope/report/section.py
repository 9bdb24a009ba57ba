"""Section: a piece of a report as data; renderers decide how it looks."""

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
class Section:
    """A heading, a table and lines of text, in that order; each may be missing."""

    title: str | None = None
    table: Table | None = None
    lines: tuple[str, ...] = ()
    details: tuple[str, ...] = ()  # shown on request (-v)
