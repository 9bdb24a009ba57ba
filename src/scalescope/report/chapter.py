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
from scalescope.results.printable import printable

_LAST = 1_000
_LONGEST_PROBLEM = 300
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


def chapters_of(report_input: ReportInput) -> tuple[Chapter, ...]:
    """Everything there is a chapter for, in order."""
    built: list[Chapter] = []
    for module in pkgutil.iter_modules(chapters.__path__):
        made = _made(module.name, report_input)
        if made is not None:
            built.append(made)
    used: set[str] = set()
    return tuple(
        _with_unique_names(chapter, used) for chapter in sorted(built, key=lambda chapter: chapter.order)
    )


def _made(name: str, report_input: ReportInput) -> Chapter | None:
    """A chapter; one that fails costs itself alone, and says so."""
    make = importlib.import_module(f"{chapters.__name__}.{name}").chapter
    try:
        made: Chapter | None = make(report_input)
        return made
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        problem = printable(f"{type(error).__name__}: {error}")[:_LONGEST_PROBLEM]
        return Chapter(
            name=name,
            title=name.replace("_", " ").capitalize(),
            order=_LAST,
            sections=(Section(lines=(f"This chapter could not be made: {problem}",)),),
            problem=problem,
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
