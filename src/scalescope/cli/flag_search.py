"""Every flag of every verb as data, and a search in them."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import click

from scalescope.catalog.setting import PerDevice, Scalar, nearest
from scalescope.cli import front_page
from scalescope.cli.help_pages import VerbOption
from scalescope.cli.options import InWords, SettingOption


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag, what it sets, and where it can be used."""

    name: str
    flags: tuple[str, ...]
    key: str | None  # in an experiment file
    help: str
    defaults: dict[str, object]  # by verb; of settings only
    default_texts: dict[str, str]  # the same as people read them
    choices: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()


def all_flags() -> tuple[Flag, ...]:
    """The flags of all verbs; one that several verbs have is listed once."""
    from scalescope.cli.app import app

    context = click.Context(app)
    merged: dict[tuple[str, ...], Flag] = {}
    for verb in front_page.verb_names():
        command = app.get_command(context, verb)
        assert command is not None
        for flag in _flags_of(verb, command):
            same = merged.get(flag.flags)
            merged[flag.flags] = flag if same is None else _merged(same, flag)
    return tuple(sorted(merged.values(), key=lambda flag: flag.name))


def _flags_of(verb: str, command: click.Command) -> Iterator[Flag]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _flags_of(f"{verb} {name}", inner)
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            yield _flag_of(verb, option)


def _flag_of(verb: str, option: click.Option) -> Flag:
    names = (*option.opts, *option.secondary_opts)
    name = max(option.opts, key=len).lstrip("-").replace("-", "_")
    text = " ".join((option.help or "").split())
    if not isinstance(option, SettingOption):
        key = option.key if isinstance(option, VerbOption) else None
        choices = tuple(getattr(option.type, "choices", ()))
        return Flag(
            name=name,
            flags=names,
            key=key,
            help=text,
            defaults={},
            default_texts={},
            choices=choices,
            verbs=(verb,),
        )
    return Flag(
        name=option.setting.name,
        flags=names,
        key=option.setting.name,
        help=option.setting.help,
        defaults={verb: _plain(option.stated)},
        default_texts={verb: option.default_text} if option.default_text else {},
        choices=option.setting.choices,
        cards=option.cards,
        verbs=(verb,),
    )


def _plain(value: Scalar | PerDevice | InWords) -> object:
    """A default as JSON has it."""
    if isinstance(value, InWords):
        return value.text
    return dataclasses.asdict(value) if isinstance(value, PerDevice) else value


def _merged(first: Flag, second: Flag) -> Flag:
    return dataclasses.replace(
        first,
        cards=tuple(dict.fromkeys((*first.cards, *second.cards))),
        verbs=tuple(dict.fromkeys((*first.verbs, *second.verbs))),
        defaults={**first.defaults, **second.defaults},
        default_texts={**first.default_texts, **second.default_texts},
    )


def search(flags: Iterable[Flag], words: Sequence[str]) -> tuple[Flag, ...]:
    """The flags that contain every word: first the one of that name, then those with it in their name."""
    wanted = [_folded(word) for word in words]
    matches = [flag for flag in flags if all(_contains(flag, word) for word in wanted)]

    def distance(flag: Flag) -> tuple[bool, bool]:
        name = _folded(flag.name)
        return name not in wanted, not all(word in name for word in wanted)

    return tuple(sorted(matches, key=distance))


def _contains(flag: Flag, word: str) -> bool:
    """Anywhere in the name, and where a word begins in what is said about it."""
    if any(word in _folded(name) for name in (flag.name, *flag.flags)):
        return True
    text = _folded(" ".join((flag.help, *flag.choices, *flag.cards)))
    return re.search(rf"\b{re.escape(word)}", text) is not None


def _folded(text: str) -> str:
    return text.casefold().replace("-", "_").strip("_")


def suggestion(flags: Iterable[Flag], words: Sequence[str]) -> str:
    """The name nearest to a misspelt one, or a part of a name."""
    names = [flag.name for flag in flags]
    parts = [part for name in names for part in name.split("_") if len(part) > 2]
    return nearest(_folded("_".join(words)), names) or nearest(_folded("_".join(words)), parts)
