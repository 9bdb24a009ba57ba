"""Chapter: a part of a report as data. Each file in `chapters/` makes one."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.section import Figure, KeyFigure, Section

Part = TypeVar("Part", Section, Figure)
VERDICT = "verdict"  # the chapter that is the first screen


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """A heading, sections of text and tables, and figures."""

    name: str  # in links
    title: str
    order: int
    sections: tuple[Section, ...] = ()
    figures: tuple[Figure, ...] = ()
    key_figures: tuple[KeyFigure, ...] = ()  # below the first section
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


_ANSWERS = ("waterfall", "step", "levers", "collectives", "memory", "steps", "data")
_ANSWERS_OF = {"tune": ("levers",)}  # verbs whose question another chapter answers


def with_first_screen(chapters: Sequence[Chapter], verb: str = "") -> tuple[Chapter, ...]:
    """The verdict with the one figure that answers the question of the verb, moved there from its chapter."""
    by_name = {chapter.name: chapter for chapter in chapters}
    names = (*_ANSWERS_OF.get(verb, ()), *_ANSWERS)
    source = next((by_name[name] for name in names if name in by_name and by_name[name].figures), None)
    if source is None or VERDICT not in by_name:
        return tuple(chapters)
    figure, *others = source.figures
    changed = {
        VERDICT: dataclasses.replace(by_name[VERDICT], figures=(figure,)),
        source.name: dataclasses.replace(source, figures=tuple(others)),
    }
    moved = (changed.get(chapter.name, chapter) for chapter in chapters)
    return tuple(chapter for chapter in moved if chapter.sections or chapter.figures)


def answer_chapters(
    first: Sequence[Section],
    rest: Sequence[Section],
    figures: Sequence[Figure | None],
    key_figures: Sequence[KeyFigure] = (),
) -> tuple[Chapter, ...]:
    """The chapters of an answer other than a run: the verdict, a figure and what to do; then the rest."""
    drawn = tuple(figure for figure in figures if figure is not None)
    verdict = Chapter(
        name=VERDICT,
        title="Summary",
        order=0,
        sections=tuple(first),
        figures=drawn[:1],
        key_figures=tuple(key_figures),
    )
    details = Chapter(name="details", title="Details", order=1, sections=tuple(rest), figures=drawn[1:])
    return (verdict, details) if rest or details.figures else (verdict,)
