"""Files that a verb writes beside what it shows: JSON, Markdown, a page."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

if TYPE_CHECKING:
    from scalescope.report.chapter import Chapter
    from scalescope.report.section import Section


class Answer(Protocol):
    """What a verb found, in the forms that it is written in."""

    @property
    def sections(self) -> "tuple[Section, ...]": ...
    @property
    def data(self) -> Mapping[str, Any]: ...
    @property
    def chapters(self) -> "tuple[Chapter, ...]": ...


_OUTPUTS = {
    "json": "the results as JSON",
    "markdown": "the results as Markdown",
    "html": "a page with a figure",
}


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The flags `--json`, `--markdown` and `--html`."""
    for name, what in reversed(_OUTPUTS.items()):
        path = click.Path(path_type=Path, dir_okay=False)
        command = click.option(f"--{name}", f"{name}_file", type=path, help=f"Also write {what}.")(command)
    return command


def show_and_write(answer: Answer, arguments: Mapping[str, Any], title: str, source: str) -> None:
    """On the screen, and in the files that were asked for."""
    from scalescope.report.render.markdown import markdown
    from scalescope.report.render.page import page
    from scalescope.report.render.terminal import console, show
    from scalescope.results.files import to_text, write_atomically

    show(answer.sections, console(), verbose=arguments["verbose"])
    texts: dict[str, Callable[[], str]] = {
        "json": lambda: to_text(answer.data),
        "markdown": lambda: markdown(answer.sections),
        "html": lambda: page(answer.chapters, title, source),
    }
    for name, text in texts.items():
        if arguments[f"{name}_file"] is not None:
            write_atomically(arguments[f"{name}_file"], text())
