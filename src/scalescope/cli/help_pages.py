"""Help of a verb: a first page with the flags that people use, and a second one with all of them."""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import click

HELP_ALL = "--help-all"
OWN_FLAGS = "General"
RUN = "Run"  # the heading of what is about the run and not about the job
_COLUMN = 30  # at which the texts of the first page begin
_INDENT = "  "
_EXAMPLE_WORD = re.compile(r"\s*Examples?:\s*\Z")
_CLAUSE = re.compile(r"(.*?)(?:[;.](?:\s|\Z)|\Z)", re.DOTALL)


class VerbOption(click.Option):
    """A flag that knows its heading, and whether it belongs on the first page of help.

    `key` is its name in an experiment file; None for what is about this one command: --dry-run, -v.
    """

    def __init__(
        self,
        *args: Any,
        heading: str = OWN_FLAGS,
        common: str | None = OWN_FLAGS,
        brief: str = "",
        in_file: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading
        self.common = common
        self.brief = brief
        longest = max(self.opts, key=len)
        self.key = longest.lstrip("-").replace("-", "_") if in_file else None

    def brief_text(self) -> str:
        """What the first page says of it."""
        return self.brief or _first_clause(self.help or "")

    def brief_flag(self) -> str:
        """The flag with its value, in the form that changes something."""
        names = [*self.opts[:1], *(name for name in self.opts[1:] if not name.startswith("--"))]
        if self.is_flag:
            off = self.default is True and self.secondary_opts
            return ", ".join(self.secondary_opts if off else reversed(names))
        return f"{', '.join(reversed(names))} {self.brief_value()}"

    def brief_value(self) -> str:
        """What stands for the value of the flag."""
        return self.metavar or self.type.name.upper()


def own_flag(*names: str, common: bool = True, **details: Any) -> Callable[[Any], Any]:
    """Decorator: a flag of a verb; one that is not common is listed by --help-all alone."""
    return click.option(*names, cls=VerbOption, common=OWN_FLAGS if common else None, **details)


def _first_clause(text: str) -> str:
    match = _CLAUSE.match(text)
    assert match is not None
    return f"{match[1]}." if match[1] else ""


class VerbCommand(click.Command):
    """A verb; its docstring is a sentence, perhaps a paragraph, and indented lines as examples."""

    def get_help(self, ctx: click.Context) -> str:
        options = [option for option in self.params if isinstance(option, VerbOption)]
        more = any(option.common is None and not option.hidden for option in options)
        return self.first_page(ctx) if more else self.full_page(ctx)

    def first_page(self, ctx: click.Context) -> str:
        """The flags that people use."""
        groups: dict[str, list[str]] = {}
        for option in self.get_params(ctx):
            common = getattr(option, "common", None)
            if common is not None and isinstance(option, VerbOption) and not option.hidden:
                width = ctx.terminal_width or 78
                groups.setdefault(common, []).extend(_lines(option.brief_flag(), option.brief_text(), width))
        ordered = sorted(groups.items(), key=lambda group: group[0] == RUN)  # what all verbs share comes last
        body = [line for heading, lines in ordered for line in ("", f"{heading}:", *lines)]
        footer = f"All flags: {ctx.command_path} {HELP_ALL}. Search: scalescope settings WORD."
        return "\n".join((self._top(ctx), *body, "", footer))

    def full_page(self, ctx: click.Context) -> str:
        """All flags, by what they belong to."""
        formatter = ctx.make_formatter()
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(parameter, "heading", OWN_FLAGS), []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)
        return f"{self._top(ctx)}\n\n{formatter.getvalue().strip()}"

    def _top(self, ctx: click.Context) -> str:
        """Usage, purpose and examples."""
        usage = ctx.make_formatter()
        self.format_usage(ctx, usage)
        text, examples = text_and_examples(self.help or "")
        purpose = textwrap.fill(text, ctx.terminal_width or 78, **_INDENTED)
        shown = ("\n".join(("Examples:", *examples)),) if examples else ()
        return "\n\n".join((usage.getvalue().rstrip(), purpose, *shown))


_INDENTED: dict[str, Any] = {"initial_indent": _INDENT, "subsequent_indent": _INDENT}


def text_and_examples(help_text: str) -> tuple[str, list[str]]:
    """The docstring of a verb as one paragraph, and the lines in it that are indented."""
    paragraphs, examples = [], []
    for part in inspect.cleandoc(help_text).split("\n\n"):
        if part.startswith(_INDENT):
            examples += [_INDENT + line.strip() for line in part.splitlines()]
        else:
            paragraphs.append(_EXAMPLE_WORD.sub("", " ".join(part.split())))
    return " ".join(filter(None, paragraphs)), examples


def _lines(flag: str, text: str, width: int) -> Iterator[str]:
    """A flag and its text, the text in a column of its own."""
    wrapped = textwrap.wrap(text, width - _COLUMN) or [""]
    gap = _COLUMN - len(_INDENT)
    if len(flag) + 2 > gap:
        yield f"{_INDENT}{flag}"
    else:
        yield f"{_INDENT}{flag:<{gap}}{wrapped.pop(0)}".rstrip()
    yield from (f"{'':{_COLUMN}}{line}" for line in wrapped)


def with_help_all(command: click.Command) -> click.Command:
    """The verb with --help-all, and so for the verbs inside a group."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_help_all(inner)
    if not any(HELP_ALL in option.opts for option in command.params):
        command.params.append(_help_all_option())
    return command


def _help_all_option() -> click.Option:
    return VerbOption(
        [HELP_ALL],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_full_page,
        help="Show all flags and exit.",
        common=None,
        in_file=False,
        hidden=True,
    )


def _show_full_page(ctx: click.Context, option: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    command = ctx.command
    click.echo(command.full_page(ctx) if isinstance(command, VerbCommand) else command.get_help(ctx))
    ctx.exit()
