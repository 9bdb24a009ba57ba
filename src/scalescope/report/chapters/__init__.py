"""Chapters of a report, one file each: `chapter(report_input)` makes one, or None if it would be empty."""

import dataclasses
import importlib
import pkgutil

from scalescope.report.analyzed_run import ReportInput
from scalescope.report.chapter import Chapter
from scalescope.report.section import Section
from scalescope.results.printable import printable

_LAST = 1_000
_LONGEST_PROBLEM = 300


def chapters_of(report_input: ReportInput) -> tuple[Chapter, ...]:
    """Everything there is a chapter for, in order."""
    built: list[Chapter] = []
    for module in pkgutil.iter_modules(__path__):
        made = _made(module.name, report_input)
        if made is not None:
            built.append(made)
    used: set[str] = set()
    return tuple(
        _with_unique_names(chapter, used) for chapter in sorted(built, key=lambda chapter: chapter.order)
    )


def _made(name: str, report_input: ReportInput) -> Chapter | None:
    """A chapter; one that fails costs itself alone, and says so."""
    make = importlib.import_module(f"{__name__}.{name}").chapter
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


def _with_unique_names(chapter: Chapter, used: set[str]) -> Chapter:
    """The chapter with figure names that are unique, also on file systems that ignore case."""
    figures = []
    for figure in chapter.figures:
        names = (figure.name, *(f"{figure.name}_{number}" for number in range(2, len(used) + 3)))
        name = next(name for name in names if name.casefold() not in used)
        used.add(name.casefold())
        figures.append(dataclasses.replace(figure, name=name))
    return dataclasses.replace(chapter, figures=tuple(figures))
