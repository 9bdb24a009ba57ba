"""Flags made from the cards: one flag for each setting, grouped by card in the help."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from scalescope.catalog import cards
from scalescope.catalog.cards import grouped_settings
from scalescope.catalog.measuring import NEXT_LAUNCH, Measuring
from scalescope.catalog.setting import SCRIPT, PerDevice, Scalar, Setting, parse_value, settings_of
from scalescope.catalog.slurm import JOB_KEYS, Slurm
from scalescope.cli.help_pages import RUN, VerbCommand, VerbOption, own_flag
from scalescope.cli.meant_command import line_of, name_of, on_several_ranks, split_at_script, with_arguments
from scalescope.errors import BadInput
from scalescope.experiment.command_line import (
    AFTER_DASHES,
    COMMAND,
    VARY,
    decided_by_script,
    joined,
    number_of_ranks,
    takes_world_size,
)
from scalescope.experiment.given import Entries, Given
from scalescope.studies.study import Study


@dataclass(frozen=True, slots=True)
class InWords:
    """A default that planning decides, as help describes it."""

    text: str


Stated = Scalar | PerDevice | InWords

_DASHES = "--"
_LONGEST_NUMBER = 9  # digits of a launch's number
_WORDS = "scalescope.command"  # under which click's context keeps what stands behind the dashes

_METAVARS = {"int": "INT", "float": "NUMBER", "str": "TEXT", "duration": "TIME", "bytes": "SIZE"}


class SettingOption(VerbOption):
    """A flag that is made from a setting; `stated` is the default that its help gives."""

    def __init__(
        self,
        *args: Any,
        setting: Setting,
        stated: Stated,
        default_text: str,
        cards: tuple[str, ...],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.default_text = default_text  # the same in words, with what other cards start from
        self.cards = cards  # the headings of all that have the setting
        self.setting = setting
        self.setting_name = setting.name
        self.stated = stated

    def brief_text(self) -> str:
        default = _short_default(self.setting, self.stated)
        return " ".join(filter(None, (super().brief_text(), default)))

    def brief_value(self) -> str:
        return "NAME" if self.setting.choices else _METAVARS.get(self.setting.kind) or super().brief_value()

    def brief_flag(self) -> str:
        if self.is_flag and self.stated is True:
            return self.secondary_opts[0]
        return super().brief_flag()


class MeasuringCommand(VerbCommand):
    """A verb that measures; its own flags may also stand in the experiment file.

    What stands behind `--` is a training command, and nothing in it is read as a flag.
    """

    study: type[Study]

    @property
    def takes_commands(self) -> bool:
        """Whether a training command can be measured."""
        return bool(cards.card("benchmarks", self.study.benchmark).takes_commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words: tuple[str, ...] = ()
        if _DASHES in args:
            position = args.index(_DASHES)
            words = ctx.meta[_WORDS] = tuple(args[position + 1 :])
            args = args[:position]
        if not ctx.resilient_parsing:
            self._refuse_script(ctx, args, words)
        typed = list(args)
        rest = super().parse_args(ctx, args)
        compares = self.takes_commands and self.study.compares_ranks
        if words and compares and not ctx.resilient_parsing:
            _refuse_one_world_size(ctx, typed, words)
        return rest

    def _refuse_script(self, ctx: click.Context, args: list[str], behind: tuple[str, ...]) -> None:
        """Refuse a training script in the place of an experiment file, with the command that was meant."""
        found = split_at_script(args, self.params)
        if found is None:
            return
        flags, words = found
        if not self.takes_commands:
            raise BadInput(
                f"{words[0]}: {ctx.info_name} cannot measure a command; train, scale, tune and run can"
            )
        decided = self._flags_of_script()
        ours = [flag for flag in flags if name_of(flag) not in decided]
        command = with_arguments((*words, *behind), [flag for flag in flags if name_of(flag) in decided])
        needs_ranks = "world_size" in self.study.planned_defaults or any(
            name_of(flag) == "--world-size" for flag in flags
        )
        verb, ranks = ctx.command_path, number_of_ranks(command)
        if ranks is not None and not needs_ranks:
            ours.append(["--world-size", str(ranks)])
        meant = on_several_ranks(verb, ours, command) if needs_ranks else line_of(verb, ours, command)
        raise BadInput(f"{words[0]} is not an experiment file; put a training command after --: {meant}")

    def _flags_of_script(self) -> set[str]:
        """The flags that cannot be given with a command: the script takes these."""
        names = {*decided_by_script(self.study.benchmark), "batch_size", "global_batch_size"}
        options = [option for option in self.params if isinstance(option, SettingOption | Shortcut)]
        return {
            name
            for option in options
            if option.setting_name in names
            for name in (*option.opts, *option.secondary_opts)
        }

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)
        return [*pieces, "[-- COMMAND...]"] if self.takes_commands else pieces

    def invoke(self, ctx: click.Context) -> Any:
        if ctx.params.get("experiment") is not None:
            _take_own_flags_from_file(ctx)
        return super().invoke(ctx)


def _refuse_one_world_size(ctx: click.Context, typed: list[str], words: tuple[str, ...]) -> None:
    """Refuse to compare ranks of a command that runs on one number of them, unless that number is given."""
    decided = ("experiment", "world_size", "keep_running", "resume")
    if takes_world_size(joined(words)) or any(ctx.params.get(name) for name in decided):
        return
    meant = on_several_ranks(ctx.command_path, [[word] for word in typed], words)
    raise BadInput(f"{ctx.info_name} compares world sizes, and this command does not take one: {meant}")


def own_keys(command: click.Command) -> frozenset[str]:
    """The keys in an experiment file that are flags of the verb, and no settings."""
    return frozenset(option.key for option in _own_options(command) if option.key is not None)


def _own_options(command: click.Command) -> list[VerbOption]:
    options = [option for option in command.params if isinstance(option, VerbOption)]
    return [
        option
        for option in options
        if option.key not in JOB_KEYS and not isinstance(option, SettingOption | Shortcut)
    ]


def _take_own_flags_from_file(ctx: click.Context) -> None:
    """A flag that was not typed has the value that the experiment file gives it."""
    from scalescope.experiment.yaml_file import read_experiment_file

    written = read_experiment_file(ctx.params["experiment"])
    for option in _own_options(ctx.command):
        assert option.name is not None
        if option.key in written and ctx.get_parameter_source(option.name) is ParameterSource.DEFAULT:
            ctx.params[option.name] = _value_in_file(option, written[option.key], ctx)


def _value_in_file(option: VerbOption, given: tuple[Given, ...], ctx: click.Context) -> Any:
    texts, origin = tuple(value.text for value in given), given[0].origin
    if option.is_flag:
        switch = Setting(name="switch", kind="bool", default=None, help="", card="")
        return parse_value(switch, ",".join(texts), origin)
    try:
        return option.type_cast_value(ctx, texts if option.multiple else ",".join(texts))
    except click.BadParameter as error:
        raise BadInput(f"{origin}: {error.message}") from None


def measuring_verb(study: type[Study]) -> Callable[[Any], click.Command]:
    """Decorator: the verb of a study: every setting as a flag, an experiment file and the run's switches."""

    def decorate(function: Any) -> click.Command:
        command = click.command(study.verb, cls=MeasuringCommand)(function)
        command.study = study
        own_options = list(command.params)
        command.params = [
            click.Argument(
                ["experiment"], required=False, type=click.Path(path_type=Path), metavar="[EXPERIMENT.yaml]"
            ),
            *own_options,
            *_setting_options(study),
            *_run_options(study),
            *_switch_options(),
            *(_slurm_options(study) if study.runs_on_slurm else ()),
        ]
        return command

    return decorate


def _setting_options(study: type[Study]) -> Iterator[click.Option]:
    headings = _headings_by_setting(study.benchmark)
    listed: set[str] = set()
    for heading, card in grouped_settings(study.benchmark):
        for setting in settings_of(card):
            if not setting.internal and setting.name not in listed:
                listed.add(setting.name)
                others = [name[0].lower() + name[1:] for name in headings[setting.name] if name != heading]
                also = f" Also for {', '.join(others)}." if others else ""
                documented = dataclasses.replace(setting, help=setting.help + also)
                yield _option(documented, tuple(headings[setting.name]), study)
                if setting.shortcut is not None:
                    yield Shortcut(setting, heading)


def _headings_by_setting(benchmark: str) -> dict[str, list[str]]:
    """For every setting, the headings of the cards that have it."""
    headings: dict[str, list[str]] = {}
    for heading, card in grouped_settings(benchmark):
        for setting in settings_of(card):
            headings.setdefault(setting.name, []).append(heading)
    return headings


class Shortcut(VerbOption):
    """A switch that stands for one value of a setting."""

    def __init__(self, setting: Setting, heading: str) -> None:
        assert setting.shortcut is not None
        name, self.value = setting.shortcut
        text = f"Same as {setting.flag} {self.value}."
        super().__init__(
            [f"--{name.replace('_', '-')}", name], is_flag=True, help=text, heading=heading, common=None
        )
        self.setting_name = setting.name


def _run_options(study: type[Study]) -> Iterator[click.Option]:
    for setting in settings_of(Measuring):
        yield _option(setting, (RUN,), study)


def run_option(name: str) -> Callable[[Any], Any]:
    """Decorator: the flag of one setting of the run, for verbs that have no others."""
    setting = next(setting for setting in settings_of(Measuring) if setting.name == name)
    option = _option(dataclasses.replace(setting, default=None), (RUN,), None)

    def decorate(function: Any) -> Any:
        function.__click_params__ = [*getattr(function, "__click_params__", []), option]
        return function

    return decorate


def _launch_number(context: click.Context, option: click.Parameter, text: str | None) -> int | str | None:
    """The number of a launch, or `next`."""
    if text is None or text == NEXT_LAUNCH:
        return text
    if not text.isdecimal() or len(text) > _LONGEST_NUMBER:
        raise click.BadParameter(f"expected a number from 0, or {NEXT_LAUNCH}, got {text!r}", context, option)
    return int(text)


def _switch_options() -> Iterator[click.Option]:
    yield _switch(
        ["--resume"],
        "Continue a stopped run: the newest unfinished one, or the one in --output-dir.",
        common=RUN,
        brief="Continue the newest unfinished run.",
        in_file=False,
    )
    yield _switch(
        ["--dry-run"],
        "Show the planned trials and their estimated time; measure nothing.",
        common=RUN,
        brief="Show the plan and its estimated time.",
        in_file=False,
    )
    yield _switch(
        ["--trust"],
        "With --resume: run the commands and shell lines stored in the run folder, whoever wrote them.",
        in_file=False,
    )
    yield _switch(["--strict"], "Exit with code 6 if the measurement is unstable.")
    yield _switch(["--yes"], "Allow more than 10,000 trials.")
    yield _switch(
        ["-v", "--verbose"],
        "Show all columns, intervals, causes of instability, and how figures were computed.",
        common=RUN,
        brief="All columns, intervals and causes of noise.",
        in_file=False,
    )
    yield VerbOption(
        ["--only-launch", "only_launch"],
        callback=_launch_number,
        metavar="NUMBER|next",
        help="Run only launches with this number, counted from 0; other commands with the same --output-dir "
        "run the rest. For torchrun or srun, which start new ranks per command. For tune, use next: the next "
        "launch given the results so far; exit code 10 means that none is left.",
        heading=RUN,
        common=None,
        in_file=False,
    )
    yield VerbOption(
        ["--budget-since", "budget_since"],
        hidden=True,  # for job scripts too: a job that is submitted again has a budget of its own
        heading=RUN,
        common=None,
        in_file=False,
    )


def _switch(names: list[str], text: str, common: str | None = None, **rest: Any) -> VerbOption:
    return VerbOption(names, is_flag=True, help=text, heading=RUN, common=common, **rest)


def _slurm_options(study: type[Study]) -> Iterator[click.Option]:
    for setting in settings_of(Slurm):
        yield _option(setting, ("SLURM",), study)
    yield VerbOption(
        ["--setup", "setup"],
        multiple=True,
        metavar="TEXT",
        help="Shell line to run before the ranks start (module load ...); repeat for more lines.",
        heading="SLURM",
        common=None,
    )


def _option(setting: Setting, headings: tuple[str, ...], study: type[Study] | None) -> click.Option:
    kinds = {"workload": "workloads", "data": "data", "strategy": "strategies"}
    brief = setting.brief
    if setting.name in kinds:
        choices = cards.known_names(kinds[setting.name])
        setting = dataclasses.replace(setting, help=f"{setting.help} Known: {', '.join(choices)}.")
    default_text = _default_text(setting, study)
    shown: dict[str, Any] = {
        "help": f"{setting.help} [default: {default_text}]" if default_text else setting.help,
        "heading": headings[0],
        "cards": headings,
        "common": setting.common,
        "brief": brief,
        "setting": setting,
        "stated": _stated_default(setting, study),
        "default_text": default_text,
        "default": None,
    }
    if setting.kind == "bool":
        opposite = setting.opposite or f"--no-{setting.flag.removeprefix('--')}"
        flags = f"{setting.flag}/{opposite}"
        return SettingOption([flags, setting.name], **shown)
    if setting.kind == "env":
        return SettingOption([setting.flag, setting.name], multiple=True, metavar="NAME=VALUE", **shown)
    if setting.kind == "link":
        return SettingOption([setting.flag, setting.name], multiple=True, metavar="RATE", **shown)
    metavar = "|".join(setting.choices) or _METAVARS[setting.kind]
    if setting.sweep:
        metavar += "[,...]"
    names = [setting.flag, *setting.aliases, setting.name]
    return SettingOption(names, multiple=True, metavar=metavar, **shown)


def _stated_default(setting: Setting, study: type[Study] | None) -> Stated:
    """The default in help: what the study plans with, its own, or the setting's."""
    if study is None:
        return setting.default
    if setting.name in study.planned_defaults:
        return InWords(study.planned_defaults[setting.name])
    value: Stated = study.defaults.get(setting.name, setting.default)
    return value


def _default_text(setting: Setting, study: type[Study] | None) -> str:
    value = _stated_default(setting, study)
    texts = [_value_text(value, setting)] if value is not None or setting.none_word != "none" else []
    if study is not None and setting.name not in {**study.defaults, **study.planned_defaults}:
        texts += [
            f"{_value_text(other, setting)} with {name}" for name, other in _other_defaults(setting.name)
        ]
    if study is not None and _is_left_to_script(setting, study):
        texts.append("the script's value with a command")
    return "; ".join(texts)


def _is_left_to_script(setting: Setting, study: type[Study]) -> bool:
    """Whether the script of a training command decides where no value is given."""
    *_, last = cards.all_settings(study.benchmark).get(setting.name, (setting,))
    return last.default is None and last.none_word == SCRIPT


def _short_default(setting: Setting, value: Stated) -> str:
    """The same for the first page: a switch that is off and a setting without a default say nothing."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, PerDevice):
        return f"[{_value_text(value.cpu, setting)}; GPU: {_value_text(value.cuda, setting)}]"
    if isinstance(value, InWords):
        return f"[{value.text.partition(';')[0]}]"
    return f"[{_value_text(value, setting)}]"


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
        if name != COMMAND  # which has its own defaults
    )


def _value_text(value: Stated, setting: Setting) -> str:
    if isinstance(value, InWords):
        return value.text
    if isinstance(value, PerDevice):
        return f"{_value_text(value.cpu, setting)} on CPU, {_value_text(value.cuda, setting)} on GPU"
    if value is None:
        return setting.none_word
    if setting.kind == "bool":
        return "on" if value else "off"
    if setting.kind == "duration" and isinstance(value, float):
        return f"{value:g}s"
    if setting.kind == "bytes" and isinstance(value, int):
        return _size_text(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _size_text(size: int) -> str:
    """A size as the flag takes it: 8, 64K, 32M."""
    for power, unit in ((30, "G"), (20, "M"), (10, "K")):
        if size and size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)


def given_flags(context: click.Context) -> Entries:
    """What was typed, as text with its flag, ready to be checked like the lines of a file."""
    entries: Entries = {}
    for parameter in context.command.params:
        setting = getattr(parameter, "setting", None)
        value = context.params.get(parameter.name or "")
        if setting is None or value is None or value == ():
            continue
        if setting.kind == "env":
            entries.update(_named_entries(setting, value))
        elif setting.kind == "bool":
            entries[setting.name] = (Given("true" if value else "false", setting.flag),)
        elif setting.kind == "link":
            entries[setting.name] = tuple(Given(text, setting.flag) for text in value)
        elif setting.sweep:  # a flag given again goes on with its list
            pieces = [piece for text in value for piece in text.split(",")]
            entries[setting.name] = tuple(Given(piece, setting.flag) for piece in pieces)
        elif len(value) > 1:
            raise click.UsageError(f"{setting.flag} takes one value, but was given {len(value)} times")
        else:
            entries[setting.name] = (Given(value[0], setting.flag),)
    _add_shortcuts(context, entries)
    _add_command(context, entries)
    return entries


def _add_command(context: click.Context, entries: Entries) -> None:
    """The words behind the dashes are the training command."""
    words = context.meta.get(_WORDS)
    if words is None:
        return
    if not words:
        raise click.UsageError("-- must be followed by a training command")
    if COMMAND in entries:
        raise click.UsageError("--command cannot be used with -- COMMAND; give only one of them")
    entries[COMMAND] = (Given(joined(words), AFTER_DASHES),)


def _add_shortcuts(context: click.Context, entries: Entries) -> None:
    for option in context.command.params:
        if isinstance(option, Shortcut) and context.params.get(option.name or ""):
            flag, name = option.opts[0], option.setting_name
            if name in entries:
                raise click.UsageError(
                    f"{flag} is the same as --{name} {option.value}; give only one of them"
                )
            entries[name] = (Given(str(option.value), flag),)


def _named_entries(setting: Setting, pairs: tuple[str, ...]) -> Entries:
    """Values under names of their own: --env NAME=VALUE, or --vary NAME=VALUE,VALUE."""
    entries: dict[str, tuple[Given, ...]] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise click.UsageError(f"{setting.flag} {pair}: expected NAME=VALUE")
        values = text.split(",") if setting.name == VARY else [text]  # a variable may contain commas
        key = f"{setting.name}.{name}"
        given = (Given(value, f"{setting.flag} {name}") for value in values)
        entries[key] = (*entries.get(key, ()), *given)
    return entries


no_waterfall = own_flag(
    "--waterfall/--no-waterfall",
    default=True,
    help="Also measure the causes of lost speed, for the waterfall. [default: yes]",
    brief="Do not measure the causes of lost speed.",
)
