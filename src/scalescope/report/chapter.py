"""Chapter: a part of a report as data. Each file in `chapters/` makes one."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.section import Figure, Section

Part = TypeVar("Part", Section, Figure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """A heading, sections of text and tables, and figures."""

    name: str  # in links
    title: str
    order: int
    sections: tuple[Section, ...] = ()
    figures: tuple[Figure, ...] = ()
    problem: str | None = None  # why it could not be made


def titled_by_run(report_input: ReportInput, parts: Iterable[tuple[AnalyzedRun, Part]]) -> tuple[Part, ...]:
    """Sections or figures with the run's name in their titles, where the report is about several runs."""
    pairs = list(parts)
    if len(report_input.analyzed_runs) < 2:
        return tuple(part for _, part in pairs)
    names = [analyzed.name for analyzed, _ in pairs]
    titled = []
    for number, (name, (_, part)) in enumerate(zip(names, pairs, strict=True)):
        follows = name in names[:number]  # a part without a title belongs to the one before
        title = f"{name}: {part.title}" if part.title else part.title if follows else name
        titled.append(dataclasses.replace(part, title=title))
    return tuple(titled)
