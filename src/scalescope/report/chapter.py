"""Chapter: a part of a report as data. Each file in `chapters/` makes one; they are found by themselves."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from scalescope.report import chapters
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.render.figure import Figure
from scalescope.report.section import Section

Part = TypeVar("Part", Section, Figure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """A heading, sections of text and tables, and figures."""

    name: str  # in links
    title: str
    order: int
    sections: tuple[Section, ...] = ()
    figures: tuple[Figure, ...] = ()


def chapters_of(report_input: ReportInput) -> tuple[Chapter, ...]:
    """Everything there is a chapter for, in order."""
    built: list[Chapter] = []
    for module in pkgutil.iter_modules(chapters.__path__):
        made = importlib.import_module(f"{chapters.__name__}.{module.name}").chapter(report_input)
        if made is not None:
            built.append(made)
    used: set[str] = set()
    return tuple(
        _with_unique_names(chapter, used) for chapter in sorted(built, key=lambda chapter: chapter.order)
    )


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


def _with_unique_names(chapter: Chapter, used: set[str]) -> Chapter:
    """The chapter with figure names that are unique, also on file systems that ignore case."""
    figures = []
    for figure in chapter.figures:
        names = (figure.name, *(f"{figure.name}_{number}" for number in range(2, len(used) + 3)))
        name = next(name for name in names if name.casefold() not in used)
        used.add(name.casefold())
        figures.append(dataclasses.replace(figure, name=name))
    return dataclasses.replace(chapter, figures=tuple(figures))
