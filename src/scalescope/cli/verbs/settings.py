"""`scalescope settings`: what can be set, and how."""

import dataclasses
import json
import textwrap
from typing import TYPE_CHECKING

import click

from scalescope.cli.help_pages import VerbCommand
from scalescope.errors import BadInput

if TYPE_CHECKING:
    from scalescope.cli.flag_search import Flag


@click.command("settings", cls=VerbCommand)
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--json", "as_json", is_flag=True, help="Print the settings as JSON.")
def command(words: tuple[str, ...], as_json: bool) -> None:
    """Search all settings and flags by name, help text, choices and cards.

    Without a word, lists all. A setting's name is also its key in an experiment file. Examples:

      scalescope settings bucket
      scalescope settings precision --json
    """
    from scalescope.cli.flag_search import all_flags, search, suggestion

    flags = all_flags()
    matches = search(flags, words)
    if not matches:
        raise BadInput(f"settings: nothing matches {' '.join(words)!r}{suggestion(flags, words)}")
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(flag) for flag in matches], indent=1))
        return
    context = click.get_current_context()
    width = context.terminal_width or 78
    for flag in matches:
        click.echo(", ".join(flag.flags))
        facts = (
            flag.help,
            f"Key in an experiment file: {flag.key}." if flag.key else "Not allowed in experiment files.",
            _defaults_of(flag),
            f"Choices: {', '.join(flag.choices)}." if flag.choices else "",
            f"Part of: {', '.join(flag.cards)}." if flag.cards else "",
            f"Verbs: {', '.join(flag.verbs)}.",
        )
        text = " ".join(filter(None, facts))
        click.echo(textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    "))


def _defaults_of(flag: "Flag") -> str:
    """The default, and for which verbs where they differ."""
    verbs: dict[str, list[str]] = {}
    for verb, text in flag.default_texts.items():
        verbs.setdefault(text, []).append(verb)
    if len(verbs) == 1:
        return f"Default: {next(iter(verbs))}."
    return " ".join(f"Default of {', '.join(names)}: {text}." for text, names in verbs.items())
