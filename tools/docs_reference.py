"""The reference pages of the documentation site, made of the code when the site is built.

Verbs and flags come from the command line, settings from the cards, files from the types that read them,
and Python calls from their signatures and docstrings.
"""

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

import click
from pydantic import TypeAdapter

import scalescope
from scalescope.cli import front_page
from scalescope.cli.app import app
from scalescope.cli.flag_search import Flag, all_flags
from scalescope.cli.help_pages import text_and_examples
from scalescope.results.run_record import RunRecord
from scalescope.results.schema import result_schema

_KINDS = ("Training", "Run", "Placement", "Workload", "Data", "Strategy", "Lever")
_MODULES = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Z])")  # in front of the name of a type


def reference_pages() -> dict[str, str]:
    """The text of each page by its name."""
    flags = all_flags()
    return {
        "verbs.md": _page("Verbs", _verbs(flags)),
        "settings.md": _page("Settings", _settings(flags)),
        "files.md": _page("Files of a run", _files()),
        "python.md": _page("Python", _python()),
    }


def _page(title: str, lines: Iterator[str]) -> str:
    return "\n\n".join((f"# {title}", *lines)) + "\n"


def _verbs(flags: tuple[Flag, ...]) -> Iterator[str]:
    yield (
        "What each verb does, and the flags that are its own. Verbs that measure also take "
        "[settings](settings.md). `scalescope VERB --help-all` prints both."
    )
    context = click.Context(app, info_name=front_page.PROGRAM)
    for verb in front_page.verb_names():
        command = app.get_command(context, verb)
        assert command is not None
        inner = command.commands if isinstance(command, click.Group) else {}
        yield from _verb(verb, command, context, flags)
        for name, part in inner.items():
            yield from _verb(f"{verb} {name}", part, click.Context(command, context, verb), flags)


def _verb(
    verb: str, command: click.Command, context: click.Context, flags: tuple[Flag, ...]
) -> Iterator[str]:
    text, examples = text_and_examples(command.help or "")
    usage = command.get_usage(click.Context(command, context, verb.split()[-1], terminal_width=100))
    yield f"## {verb}"
    yield _escaped(text)
    yield _block(" ".join(usage.removeprefix("Usage: ").split()), "text")
    if examples:
        yield _block("\n".join(line.strip() for line in examples), "text")
    own = [flag for flag in flags if verb in flag.verbs and not flag.cards]
    rows = [(_code(", ".join(flag.flags)), _escaped(flag.help)) for flag in own]
    if rows:
        yield _table(("flag", "what it does"), rows)
    if any(verb in flag.verbs and flag.cards for flag in flags):
        yield f"All [settings](settings.md) that name `{verb}` as a verb are flags, too."


def _settings(flags: tuple[Flag, ...]) -> Iterator[str]:
    yield (
        "A setting has one name: as a flag, as a key of an experiment file, as a keyword in Python, and as a "
        "field of the results. Headings are what a setting belongs to. A list of values is a sweep."
    )
    groups: dict[str, list[Flag]] = {}
    for flag in flags:
        if flag.cards:
            groups.setdefault(flag.cards[0], []).append(flag)
    for card, members in sorted(groups.items(), key=lambda group: (_kind_order(group[0]), group[0])):
        yield f"## {card}"
        for flag in members:
            yield from _setting(flag)


def _kind_order(card: str) -> int:
    """What everybody sets comes first; what the pages call `Lever fusion` comes with other levers."""
    return next((place for place, kind in enumerate(_KINDS) if card.startswith(kind)), len(_KINDS))


def _setting(flag: Flag) -> Iterator[str]:
    yield f"### {flag.name}"
    yield f"`{', '.join(flag.flags)}`"
    yield _escaped(flag.help)
    facts = [f"Default: {default}." for default in _defaults(flag)]
    if flag.choices:
        facts.append(f"Choices: {', '.join(_code(choice) for choice in flag.choices)}.")
    if flag.key is None:
        facts.append("Not allowed in experiment files.")
    if len(flag.cards) > 1:
        facts.append(f"Also part of: {', '.join(flag.cards[1:])}.")
    facts.append(f"Verbs: {', '.join(flag.verbs)}.")
    yield "\n".join(f"- {fact}" for fact in facts)


def _defaults(flag: Flag) -> Iterator[str]:
    """Each default, and the verbs that have it where they differ."""
    verbs: dict[str, list[str]] = {}
    for verb, text in flag.default_texts.items():
        verbs.setdefault(text, []).append(verb)
    for text, names in verbs.items():
        yield _escaped(text) if len(verbs) == 1 else f"{_escaped(text)} ({', '.join(names)})"


def _files() -> Iterator[str]:
    yield (
        "[What a run leaves](../results.md) lists all files. These two have types; `scalescope schema` "
        "prints the JSON Schema of the first. The keys of `results.json` are explained beside the answers: "
        "[the step](../step.md#in-resultsjson-and-from-python), "
        "[the waterfall](../report.md#how-the-waterfall-is-drawn)."
    )
    for title, schema in (
        ("A line of trials.jsonl", result_schema()),
        ("run.json", TypeAdapter(RunRecord).json_schema()),
    ):
        yield f"## {title}"
        yield from _object(schema)
        for name, inner in schema.get("$defs", {}).items():
            if "properties" in inner:
                yield f"### {name}"
                yield from _object(inner)


def _object(schema: dict[str, Any]) -> Iterator[str]:
    if text := schema.get("description"):
        yield _escaped(" ".join(inspect.cleandoc(text).split()))
    required = schema.get("required", ())
    rows = [
        (_code(name), _type_of(field), "required" if name in required else _default_of(field))
        for name, field in schema["properties"].items()
    ]
    yield _table(("key", "type", "default"), rows)


def _default_of(field: dict[str, Any]) -> str:
    return _code(json.dumps(field["default"])) if "default" in field else "empty"


def _type_of(field: dict[str, Any]) -> str:
    """The type of a field in words."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "enum" in field or "const" in field:
        return ", ".join(_code(str(value)) for value in field.get("enum", (field.get("const"),)))
    if "anyOf" in field:
        return " or ".join(_type_of(each) for each in field["anyOf"])
    if field.get("type") == "array":
        return f"list of {_type_of(field['items'])}" if field.get("items") else "list"
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"object of {_type_of(field['additionalProperties'])}"
    return str(field.get("type", "any"))


def _python() -> Iterator[str]:
    yield (
        "Everything that `import scalescope` offers; [scalescope from Python](../api.md) explains how to use "
        "it. Keywords that are not named here are [settings](settings.md)."
    )
    for name in sorted(scalescope.__all__, key=str.lower):
        value = getattr(scalescope, name)
        if name.startswith("_"):
            continue
        yield f"## {name}"
        if inspect.isclass(value):
            yield from _class(value)
        else:
            yield _block(_signature(name, value), "python")
            yield _docstring(value)


def _class(value: type[Any]) -> Iterator[str]:
    base = value.__base__
    if base is not None and base is not object and base.__name__ in scalescope.__all__:
        yield f"A [{base.__name__}](#{base.__name__.lower()}) with its own `rows()`."
    yield _docstring(value)
    fields = dataclasses.fields(value) if "__dataclass_fields__" in vars(value) else ()
    rows = [(_code(field.name), _code(_plain_type(field.type))) for field in fields]
    if rows:
        yield _table(("field", "type"), rows)
    members = []
    for name, member in vars(value).items():
        if name.startswith("_"):
            continue
        if inspect.isfunction(member):
            members.append((_code(_signature(name, member)), _first_line(member)))
        elif isinstance(member, property) or hasattr(member, "func"):
            members.append((_code(name), _first_line(getattr(member, "fget", None) or member.func)))
    if members:
        yield _table(("member", "what it is"), members)


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    kept = [parameter for parameter in signature.parameters.values() if parameter.name not in ("self", "cls")]
    text = str(signature.replace(parameters=kept))
    return _MODULES.sub("", f"{name}{text}").replace("'", "")


def _plain_type(annotation: Any) -> str:
    return _MODULES.sub("", annotation.__name__ if isinstance(annotation, type) else str(annotation))


def _docstring(value: Any) -> str:
    return _escaped(inspect.cleandoc(value.__doc__ or ""))


def _first_line(value: Any) -> str:
    return _escaped(_first_paragraph(inspect.cleandoc(value.__doc__ or "")))


def _first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def _code(text: str) -> str:
    return f"`{text}`"


def _block(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```"


def _escaped(text: str) -> str:
    """Text of the code as Markdown that shows it unchanged; what is in backticks stays."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<\[\]])", r"\\\1", part) for part in parts)
