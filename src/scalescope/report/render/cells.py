"""Values and terms as text and HTML."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalescope.analysis.configurations import Configuration
from scalescope.errors import CannotRun
from scalescope.report.analyzed_run import ReportInput
from scalescope.report.glossary import GLOSSARY, GlossaryTerm
from scalescope.report.section import Section, ShownCommand, Table
from scalescope.results.printable import printable

# ---- Scalars for TensorBoard: losses, step times and accuracies of every configuration


def write_scalars(report_input: ReportInput, folder: Path) -> int:
    """One TensorBoard run for each configuration; returns how many scalars were written."""
    writer_of = _writer()
    written = 0
    for configuration in report_input.measured:
        writer = writer_of(str(folder / _name(configuration)))
        try:
            written += _write(writer, configuration)
        finally:
            writer.close()
    return written


def _name(configuration: Configuration) -> str:
    words = configuration.trial.label.replace(", ", "-").replace(" ", "_")
    return f"{words}-{configuration.trial.trial_id}"


def _write(writer: Any, configuration: Configuration) -> int:
    """Step by step of the first launch, epoch by epoch, and the figures over all launches."""
    first = configuration.launches[0]
    count = 0
    for name, values in (("step_time_s", first.step_times_s), ("loss", first.losses)):
        for step, value in enumerate(values):
            writer.add_scalar(f"training/{name}", value, step)
            count += 1
    for epoch in configuration.epochs:
        scalars = {
            "time_s": epoch.time_s,
            "train_accuracy": epoch.train_accuracy,
            "validation_accuracy": epoch.validation_accuracy,
        }
        for name, measured in scalars.items():
            if measured is not None:
                writer.add_scalar(f"epochs/{name}", measured, epoch.number)
                count += 1
    writer.add_scalar(f"summary/{_rate_name(configuration)}", configuration.speed.value, 0)
    return count + 1


def _rate_name(configuration: Configuration) -> str:
    return "samples_per_s" if configuration.knows_samples else "steps_per_s"


def _writer() -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise CannotRun("--tensorboard requires tensorboardX: pip install 'scalescope[track]'") from None
    return SummaryWriter


# ---- Finds the glossary's terms in text, and explains each where it first appears in a chapter of the page


_BY_FORM = {form.casefold(): term for term in GLOSSARY for form in term.forms}
# Longer forms first. Parts of options, paths and names such as `--world-size` or `a/launch.py` are not terms.
_FORMS = "|".join(re.escape(form) for form in sorted(_BY_FORM, key=len, reverse=True))
_PATTERN = re.compile(rf"(?<![\w/.=\\-])(?:{_FORMS})(?![\w/=\\-]|\.\w)", re.IGNORECASE)


def terms_in(text: str) -> Iterator[tuple[int, int, GlossaryTerm]]:
    """Where terms begin and end in the text."""
    for match in _PATTERN.finditer(text):
        yield match.start(), match.end(), _BY_FORM[match[0].casefold()]


class TermMarker:
    """Turns text into HTML in which the first occurrence of each term has a tooltip."""

    def __init__(self, markup: Any) -> None:
        self._markup = markup  # markupsafe's, which is loaded only when a page is made
        self._explained: set[str] = set()

    def __call__(self, text: str) -> Any:
        """The text, escaped; a term that was explained before stays plain."""
        new = []
        for start, end, term in terms_in(text):
            if term.name not in self._explained:
                self._explained.add(term.name)
                new.append((start, end, term))
        return self._marked(text, new, '<abbr tabindex="0" title="{}">{}</abbr>')

    def heading(self, text: str) -> Any:
        """The heading of a column: each has its tooltip, which its button shows when it has the focus."""
        return self._marked(text, list(terms_in(text))[:1], '<abbr title="{}">{}</abbr>')

    def _marked(self, text: str, terms: list[tuple[int, int, GlossaryTerm]], tag: str) -> Any:
        parts, last = [], 0
        for start, end, term in terms:
            parts += [self._markup.escape(text[last:start])]
            parts += [self._markup(tag).format(term.meaning, text[start:end])]
            last = end
        return self._markup("").join([*parts, self._markup.escape(text[last:])])


# ---- Sections as lines of plain text: the one conversion that all other renderers build on


_INDENT = "   "


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of text; a command that follows it is kept separate, to be set as code."""

    text: str
    command: str = ""
    indented: bool = False
    head: str = ""  # that it begins with, to be set in bold

    def __str__(self) -> str:
        return f"{_INDENT if self.indented else ''}{self.text}{self.command}"


def body_lines(section: Section) -> tuple[TextLine, ...]:
    """Everything below the table that is always shown."""
    lines = [TextLine(line) for line in section.lines]
    for number, finding in enumerate(section.findings, start=1):
        lines.append(TextLine(f"{number}. {finding.text}", head=f"{number}. {finding.name}"))
        lines += [command_line(command, _prefix(command), indented=True) for command in finding.commands]
    lines += [command_line(command) for command in section.commands]
    return tuple(lines)


def _prefix(command: ShownCommand) -> str:
    """A command is tried; without one, the label is what to change."""
    return "try: " if command.argv else "change: "


def code_lines(section: Section) -> tuple[TextLine, ...]:
    """The piece of Python, line by line, to be copied verbatim."""
    return tuple(map(TextLine, section.code.splitlines()))


def detail_lines(section: Section) -> tuple[TextLine, ...]:
    """What is shown on request."""
    return tuple(TextLine(line) for line in section.details)


def command_line(command: ShownCommand, prefix: str = "", *, indented: bool = False) -> TextLine:
    """What a command is for, and the command as a shell takes it: the one place that makes it text."""
    changed = " (changes the job)" if command.changes_job else ""
    colon = ": " if command.argv else ""
    return TextLine(f"{prefix}{command.label}{changed}{colon}", command.command, indented)


def plain_text(sections: Iterable[Section]) -> str:
    """Sections with their details as a text file, with a blank line between them."""
    lines: list[str] = []
    for section in sections:
        lines.append(section.title or "")
        if section.table is not None:
            lines += _table_lines(section.table)
        shown = (*code_lines(section), *body_lines(section), *detail_lines(section))
        lines += [str(line) for line in shown]
        lines.append("")
    return "\n".join(map(printable, lines)).strip() + "\n"


def _table_lines(table: Table) -> list[str]:
    rows = [table.columns, *table.rows]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
