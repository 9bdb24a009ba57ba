"""Flags made from the cards: one flag for each setting, grouped by card in the help."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from scalescope.catalog import cards
from scalescope.catalog.cards import grouped_settings
from scalescope.catalog.measuring import Measuring
from scalescope.catalog.setting import PerDevice, Scalar, Setting, settings_of
from scalescope.catalog.slurm import Slurm
from scalescope.experiment.given import Entries, Given
from scalescope.studies.study import Study

_METAVARS = {"int": "INT", "float": "NUMBER", "str": "TEXT", "duration": "TIME", "bytes": "SIZE"}
SWEEP_TEXT = {
    "world_size": "1, 2, 4 ... up to what the machine has",
    "batch_size": "32,256 on CPU, 256,4096 on GPU",
}
_SHORT_FORMS = {"precision": ("amp", "bf16")}  # setting: (flag, value)
_SWITCHES = {
    "resume": "Continue a run that was stopped: the newest unfinished one, or the one in --output-dir.",
    "dry_run": "Show the trials and about how long they take; measure nothing.",
    "strict": "Exit with code 6 if the measurement is unstable.",
    "yes": "Allow more than 10,000 trials.",
}


class SettingOption(click.Option):
    """A flag that belongs to a setting and knows the heading it stands under."""

    def __init__(self, *args: Any, heading: str, setting: Setting | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading
        self.setting = setting


class MeasuringCommand(click.Command):
    """A verb whose help groups the flags by what they belong to."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                heading = getattr(parameter, "heading", "General")
                groups.setdefault(heading, []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def measuring_verb(study: type[Study], shown: dict[str, str] | None = None) -> Callable[[Any], click.Command]:
    """Decorator: the verb of a study: every setting as a flag, an experiment file and the run's switches.

    `shown` has defaults in words, for settings whose default is decided when the study is planned.
    """
    name, benchmark, defaults = study.verb, study.benchmark, {**study.defaults, **(shown or {})}

    def decorate(function: Any) -> click.Command:
        command = click.command(name, cls=MeasuringCommand)(function)
        verb_options = list(command.params)
        command.params = [
            click.Argument(
                ["experiment"], required=False, type=click.Path(path_type=Path), metavar="[EXPERIMENT.yaml]"
            ),
            *verb_options,
            *_setting_options(benchmark, defaults),
            *_run_options(defaults),
            *_switch_options(),
            *(_slurm_options() if study.runs_on_slurm else ()),
        ]
        return command

    return decorate


def _setting_options(benchmark: str, defaults: dict[str, Any]) -> Iterator[click.Option]:
    headings = _headings_by_setting(benchmark)
    listed: set[str] = set()
    for heading, card in grouped_settings(benchmark):
        for setting in settings_of(card):
            if not setting.internal and setting.name not in listed:
                listed.add(setting.name)
                others = [name[0].lower() + name[1:] for name in headings[setting.name] if name != heading]
                also = f" Also for {', '.join(others)}." if others else ""
                yield _option(dataclasses.replace(setting, help=setting.help + also), heading, defaults)
                if setting.name in _SHORT_FORMS:
                    yield _short_form(setting.name, heading)


def _headings_by_setting(benchmark: str) -> dict[str, list[str]]:
    """For every setting, the headings of the cards that have it."""
    headings: dict[str, list[str]] = {}
    for heading, card in grouped_settings(benchmark):
        for setting in settings_of(card):
            headings.setdefault(setting.name, []).append(heading)
    return headings


def _short_form(name: str, heading: str) -> click.Option:
    flag, value = _SHORT_FORMS[name]
    text = f"Short for --{name.replace('_', '-')} {value}."
    return SettingOption([f"--{flag}", flag], is_flag=True, help=text, heading=heading, setting=None)


def _run_options(defaults: dict[str, Any]) -> Iterator[click.Option]:
    for setting in settings_of(Measuring):
        yield _option(setting, "Run", defaults)


def run_option(name: str) -> Callable[[Any], Any]:
    """Decorator: the flag of one setting of the run, for verbs that have no others."""
    setting = next(setting for setting in settings_of(Measuring) if setting.name == name)
    option = _option(dataclasses.replace(setting, default=None), "Run", {name: None})

    def decorate(function: Any) -> Any:
        function.__click_params__ = [*getattr(function, "__click_params__", []), option]
        return function

    return decorate


def _switch_options() -> Iterator[click.Option]:
    for name, help_text in _SWITCHES.items():
        flag = "--" + name.replace("_", "-")
        yield SettingOption([flag, name], is_flag=True, help=help_text, heading="Run", setting=None)
    yield SettingOption(
        ["-v", "--verbose", "verbose"],
        is_flag=True,
        help="Show intervals, causes of instability and how figures were computed.",
        heading="Run",
        setting=None,
    )
    yield SettingOption(
        ["--only-launch", "only_launch"],
        type=click.IntRange(min=0),
        metavar="NUMBER",
        help="Run only the launches of this number, from 0; other commands with the same --output-dir run "
        "the others. For torchrun or srun, which start new ranks in every command.",
        heading="Run",
        setting=None,
    )
    yield SettingOption(
        ["--budget-since", "budget_since"],
        hidden=True,  # for job scripts too: a job that is submitted again has a budget of its own
        heading="Run",
        setting=None,
    )


def _slurm_options() -> Iterator[click.Option]:
    for setting in settings_of(Slurm):
        yield _option(setting, "SLURM", {})
    yield SettingOption(
        ["--setup", "setup"],
        multiple=True,
        metavar="TEXT",
        help="Shell line to run before the ranks start (module load ...); repeat for more.",
        heading="SLURM",
        setting=None,
    )


def _option(setting: Setting, heading: str, defaults: dict[str, Any]) -> click.Option:
    kinds = {"workload": "workloads", "data": "data", "strategy": "strategies"}
    if setting.name in kinds:
        choices = cards.known_names(kinds[setting.name])
        setting = dataclasses.replace(setting, help=f"{setting.help} Known: {', '.join(choices)}.")
    common: dict[str, Any] = {
        "help": f"{setting.help} {_default_text(setting, defaults)}".strip(),
        "heading": heading,
        "setting": setting,
        "default": None,
    }
    if setting.kind == "bool":
        opposite = setting.opposite or f"--no-{setting.flag.removeprefix('--')}"
        flags = f"{setting.flag}/{opposite}"
        return SettingOption([flags, setting.name], **common)
    if setting.kind == "env":
        return SettingOption([setting.flag, setting.name], multiple=True, metavar="NAME=VALUE", **common)
    if setting.kind == "link":
        return SettingOption([setting.flag, setting.name], multiple=True, metavar="RATE", **common)
    metavar = "|".join(setting.choices) or _METAVARS[setting.kind]
    if setting.sweep:
        metavar += "[,...]"
    names = [setting.flag, *setting.aliases, setting.name]
    return SettingOption(names, multiple=True, metavar=metavar, **common)


def _default_text(setting: Setting, defaults: dict[str, Any]) -> str:
    value = defaults.get(setting.name, setting.default)
    texts = [_value_text(value, setting)] if value is not None or setting.none_word != "none" else []
    if setting.name not in defaults:
        texts += [
            f"{_value_text(other, setting)} with {name}" for name, other in _other_defaults(setting.name)
        ]
    return f"[default: {'; '.join(texts)}]" if texts else ""


def _other_defaults(name: str) -> Iterator[tuple[str, Scalar | PerDevice]]:
    """Cards with another default for this setting: a workload's batch, a data set's epoch."""
    for owner, defaults in _defaults_by_card():
        if name in defaults:
            yield owner, defaults[name]


@functools.cache
def _defaults_by_card() -> tuple[tuple[str, dict[str, Any]], ...]:
    """The defaults of every workload and data set, under the name that help gives it."""
    return tuple(
        ("your own workload" if name == "custom" else name, cards.card_in(kind, name).defaults)
        for kind in ("workloads", "data")
        for name in cards.names(kind)
    )


def _value_text(value: Scalar | PerDevice, setting: Setting) -> str:
    if isinstance(value, PerDevice):
        return f"{_value_text(value.cpu, setting)} on CPU, {_value_text(value.cuda, setting)} on GPU"
    if value is None:
        return setting.none_word
    if setting.kind == "bool":
        return "on" if value else "off"
    if setting.kind == "duration" and isinstance(value, float):
        return f"{value:g}s"
    return f"{value:g}" if isinstance(value, float) else str(value)


def given_flags(context: click.Context) -> Entries:
    """What was typed, as text with its flag, ready to be checked like the lines of a file."""
    entries: Entries = {}
    for parameter in context.command.params:
        setting = getattr(parameter, "setting", None)
        value = context.params.get(parameter.name or "")
        if setting is None or value is None or value == ():
            continue
        if setting.kind == "env":
            entries.update(_env_entries(value))
        elif setting.kind == "bool":
            entries[setting.name] = (Given("true" if value else "false", setting.flag),)
        elif setting.kind == "link":
            entries[setting.name] = tuple(Given(text, setting.flag) for text in value)
        elif setting.sweep:  # a flag given again goes on with its list
            pieces = [piece for text in value for piece in text.split(",")]
            entries[setting.name] = tuple(Given(piece, setting.flag) for piece in pieces)
        elif len(value) > 1:
            raise click.UsageError(f"{setting.flag} takes one value, but is given {len(value)} times")
        else:
            entries[setting.name] = (Given(value[0], setting.flag),)
    _add_short_forms(context, entries)
    return entries


def _add_short_forms(context: click.Context, entries: Entries) -> None:
    for name, (flag, value) in _SHORT_FORMS.items():
        if context.params.get(flag):
            if name in entries:
                raise click.UsageError(f"--{flag} is short for --{name} {value}; give one of them")
            entries[name] = (Given(value, f"--{flag}"),)


def _env_entries(pairs: tuple[str, ...]) -> Entries:
    entries: dict[str, tuple[Given, ...]] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise click.UsageError(f"--env {pair}: expected NAME=VALUE")
        key = f"env.{name}"
        entries[key] = (*entries.get(key, ()), Given(value, f"--env {name}"))
    return entries


no_waterfall = click.option(
    "--waterfall/--no-waterfall",
    default=True,
    help="Also measure what explains the lost speed, for the waterfall. [default: yes]",
)
