"""Experiment: what was asked, lists allowed, read from flags and file and checked before anything starts."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from scalescope.catalog import cards
from scalescope.catalog.benchmarks.comm import check_collectives
from scalescope.catalog.measuring import Measuring
from scalescope.catalog.setting import Setting, nearest, parse_value, settings_of
from scalescope.errors import BadInput
from scalescope.experiment.command_line import (
    COMMAND,
    VARY,
    asks_for_command,
    check_command,
    check_entries,
    check_varied_name,
    joined,
    words_of,
)
from scalescope.experiment.given import Entries, Given, check_count, shown_key
from scalescope.experiment.trial import Value
from scalescope.secret_variables import redacted, redacted_varied, redacted_words

_NAMED_VALUES = ("env.", f"{VARY}.")  # keys of values that have names of their own
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_LAUNCHER_ENV = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MOST_COMBINATIONS = 10_000  # of the values of --env, and of those of --vary


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A request: settings as tuples of values (several are a sweep), and how the run is to be made."""

    verb: str
    benchmark: str
    settings: Mapping[str, tuple[Value, ...]]
    measuring: Measuring

    @property
    def is_command(self) -> bool:
        """Whether a training command is to be measured."""
        return COMMAND in self.settings

    def asked(self, name: str, *default: Value) -> tuple[Value, ...]:
        """The values that were asked for; those given as default where there are none."""
        return self.settings.get(name, default)

    def with_default(self, **defaults: tuple[Value, ...]) -> "Experiment":
        """The experiment with settings that were not asked for."""
        return dataclasses.replace(self, settings={**defaults, **self.settings})

    def with_settings(self, **changes: tuple[Value, ...]) -> "Experiment":
        return dataclasses.replace(self, settings={**self.settings, **changes})


def build_experiment(
    verb: str, benchmark: str, file: Entries, flags: Entries, defaults: Mapping[str, Any]
) -> Experiment:
    """Merge flag over file over default; `defaults` are the verb's own, for options and settings."""
    for values in (*file.values(), *flags.values()):
        check_count(values)
    given = _merged(verb, benchmark, file, flags)
    is_command = asks_for_command(given)
    run_options = {setting.name: setting for setting in settings_of(Measuring)}
    known = cards.settings_by_name(benchmark, of_command=is_command)
    measuring: dict[str, Any] = {name: run_option.default for name, run_option in run_options.items()}
    measuring.update((name, value) for name, value in defaults.items() if name in run_options)
    settings: dict[str, tuple[Value, ...]] = {
        name: (value,) for name, value in defaults.items() if name not in run_options
    }
    for name, values in given.items():
        if name in run_options:
            measuring[name] = _only_value(run_options[name], values)
        elif name in known and not known[name].internal and known[name].kind != "env":
            settings[name] = _values(known[name], values)
        elif not name.startswith(_NAMED_VALUES):
            public = [key for key, setting in known.items() if not setting.internal]
            raise _unknown_key(name, values[0].origin, (*run_options, *public))
    settings |= _named_values(_without_secrets(given) if measuring["redact_env"] else given)
    _check_batch(settings, given)
    _check_selection(settings, given)
    _check_collectives(settings, given)
    _check_name(measuring["name"], given)
    if is_command:
        words = words_of(str(settings[COMMAND][0]))  # however they were quoted
        command = joined(redacted_words(words) if measuring["redact_env"] else words)
        settings |= {"workload": (COMMAND,), COMMAND: (command,)}
        check_command(settings, given)
    return Experiment(verb=verb, benchmark=benchmark, settings=settings, measuring=Measuring(**measuring))


def _merged(verb: str, benchmark: str, file: Entries, flags: Entries) -> Entries:
    """Flag over file, without what a flag makes meaningless; refuses what cannot be given together."""
    file = under_setting_names(benchmark, file)
    check_entries(benchmark, verb, {**file, **flags})
    file = _of_this_benchmark(benchmark, file)
    given = {**file, **flags}
    _drop_overridden_batch(file, flags, given)
    _drop_overridden_steps(file, flags, given)
    _drop_unselected(file, flags, given)
    return given


def _without_secrets(given: Entries) -> Entries:
    """The entries with a mark in place of values that look like keys."""
    entries = dict(given)
    for key, values in given.items():
        kind, _, name = key.partition(".")
        if kind in ("env", VARY) and name:
            mark = redacted if kind == "env" else redacted_varied
            texts = mark(name, tuple(value.text for value in values), values[0].origin)
            entries[key] = tuple(Given(text, value.origin) for text, value in zip(texts, values, strict=True))
    return entries


def _named_values(given: Entries) -> dict[str, tuple[Value, ...]]:
    """The environment variables and the values of a command's own placeholders, in all combinations."""
    settings = {}
    for setting, check in (("env", check_variable), (VARY, _check_varied)):
        prefix = f"{setting}."
        named = {n.removeprefix(prefix): values for n, values in given.items() if n.startswith(prefix)}
        if named:
            settings[setting] = _combinations(setting, named, check)
    return settings


def _check_varied(name: str, text: str, origin: str) -> None:
    check_varied_name(name, origin)
    if not text or not text.isprintable():
        raise BadInput(f"{origin}: {name}: expected a printable value, got {text!r}")


def _of_this_benchmark(benchmark: str, file: Entries) -> Entries:
    """The file of a training job serves `train`, `scale` and `memory`: each leaves out what is another's."""
    kind = cards.card("benchmarks", benchmark).selects
    others = [name for name in cards.names("benchmarks") if cards.card("benchmarks", name).selects == kind]
    known = cards.all_settings(benchmark)
    left_out = {
        name
        for other in others
        for name, versions in cards.all_settings(other).items()
        if kind and name not in known and not versions[0].internal
    }
    return {name: values for name, values in file.items() if name not in left_out}


def under_setting_names(benchmark: str, file: Entries) -> Entries:
    """A file may say `nproc_per_node` or `amp`, as flags do: other names of settings, and of their values."""
    named = dict(file)
    for name, versions in cards.all_settings(benchmark).items():
        setting = versions[0]
        aliases = [alias.strip("-").replace("-", "_") for alias in setting.aliases if alias.startswith("--")]
        for alias in aliases:
            if alias in named:
                _rename(named, alias, name, named[alias])
        if setting.shortcut is not None and setting.shortcut[0] in named:
            alias, value = setting.shortcut
            (*_, entry) = named[alias]
            switch = dataclasses.replace(setting, kind="bool", choices=())
            if parse_value(switch, ",".join(each.text for each in named[alias]), entry.origin):
                _rename(named, alias, name, (Given(str(value), entry.origin),))
            else:
                del named[alias]
    return named


def _rename(entries: dict[str, tuple[Given, ...]], alias: str, name: str, values: tuple[Given, ...]) -> None:
    if name in entries:
        origin = entries[alias][0].origin
        raise BadInput(f"{origin}: is another name for {name} (given at {entries[name][0].origin}); give one")
    del entries[alias]
    entries[name] = values


def _drop_unselected(file: Entries, flags: Entries, given: Entries) -> None:
    """A flag that selects some of a file's strategies, workloads or data leaves out what others need."""
    for kind, name in (("strategies", "strategy"), ("workloads", "workload"), ("data", "data")):
        if name not in flags or name not in file:
            continue
        chosen = {value.text for value in flags[name]}
        known = cards.known_names(kind)
        if not chosen <= set(known):
            continue
        kept = {setting.name for card in chosen for setting in settings_of(cards.card_in(kind, card))}
        others = {setting.name for card in known for setting in settings_of(cards.card_in(kind, card))}
        for setting in others - kept:
            if setting in given and setting not in flags:
                del given[setting]


def _values(setting: Setting, given: tuple[Given, ...]) -> tuple[Value, ...]:
    values = tuple(parse_value(setting, entry.text, entry.origin) for entry in given)
    distinct: set[Value] = set()
    for value, entry in zip(values, given, strict=True):
        if value in distinct:
            raise BadInput(f"{entry.origin}: {value} is given twice")
        distinct.add(value)
    return values


def _only_value(setting: Setting, given: tuple[Given, ...]) -> Value:
    if len(given) > 1:
        raise BadInput(f"{given[0].origin}: expected one value, got {len(given)}")
    return parse_value(setting, given[0].text, given[0].origin)


def _combinations(
    setting: str, named: Mapping[str, tuple[Given, ...]], check: Callable[[str, str, str], None]
) -> tuple[Value, ...]:
    """Every combination of the values of the names: the same name twice is a sweep."""
    for name, values in named.items():
        texts = [value.text for value in values]
        for text in texts:
            check(name, text, values[0].origin)
        if len(set(texts)) < len(texts):
            raise BadInput(f"{values[0].origin}: {name}: the same value is given twice")
    count = math.prod(len(values) for values in named.values())
    if count > _MOST_COMBINATIONS:
        origin = next(iter(named.values()))[0].origin
        raise BadInput(
            f"{origin}: the {setting} lists combine to {count:,} combinations; "
            f"at most {_MOST_COMBINATIONS:,} are allowed"
        )
    choices = [[(name, value.text) for value in values] for name, values in sorted(named.items())]
    return tuple(dict(combination) for combination in product(*choices))


def check_variable(name: str, text: str, origin: str) -> None:
    """Refuse what is not an environment variable, or is set by the launcher."""
    if not _ENV_NAME.fullmatch(name):
        raise BadInput(f"{origin}: {name!r} is not a valid name of an environment variable")
    if name in _LAUNCHER_ENV:
        raise BadInput(f"{origin}: {name} cannot be given: the launcher sets it for every rank")
    if "\0" in text:
        raise BadInput(f"{origin}: {name}: a value cannot contain a NUL character")


def _drop_overridden_batch(file: Entries, flags: Entries, given: Entries) -> None:
    """A batch flag replaces the file's batch, whichever of the two ways either was given."""
    pair = ("batch_size", "global_batch_size")
    for mine, other in (pair, pair[::-1]):
        if mine in flags and other in file and other not in flags:
            given.pop(other)


def _drop_overridden_steps(file: Entries, flags: Entries, given: Entries) -> None:
    """--window replaces a file's epochs, which have a length in steps; as flags the two contradict."""
    if "window" not in flags:
        return
    for name in ("steps_per_epoch", "epochs", "eval"):
        if name in flags and flags[name][0].text not in ("false", "auto"):
            flag = name.replace("_", "-")
            raise BadInput(f"--window cannot be used with --{flag}: both set how long a launch measures")
        if name in file and name not in flags:
            given.pop(name)


def _check_batch(settings: Mapping[str, tuple[Value, ...]], given: Entries) -> None:
    if None in settings.get("batch_size", ()):
        raise BadInput(f"{given['batch_size'][0].origin}: batch_size must be a positive integer, got none")
    if "batch_size" in settings and "global_batch_size" in settings:
        raise BadInput(
            f"{given['global_batch_size'][0].origin}: give either batch_size (per rank, weak scaling) or "
            "global_batch_size (all ranks, strong scaling), not both"
        )


def _check_collectives(settings: Mapping[str, tuple[Value, ...]], given: Entries) -> None:
    """Refuse collectives that do not exist while it is still known where they were written."""
    for value, entry in zip(settings.get("collective", ()), given.get("collective", ()), strict=False):
        try:
            check_collectives(str(value).split(","))
        except BadInput as error:
            raise BadInput(f"{entry.origin}: {error}") from None


def _check_selection(settings: Mapping[str, tuple[Value, ...]], given: Entries) -> None:
    """Refuse names that no card has while it is still known where they were written."""
    for kind, name in (("workloads", "workload"), ("data", "data"), ("strategies", "strategy")):
        for value, entry in zip(settings.get(name, ()), given.get(name, ()), strict=True):
            if (name, value) != ("strategy", "auto"):
                try:
                    chosen = cards.card(kind, value)
                    if kind == "workloads":
                        chosen.check_name(value)
                except BadInput as error:
                    raise BadInput(f"{entry.origin}: {error}") from None


def _check_name(name: str | None, given: Entries) -> None:
    if name is not None and not RUN_NAME.fullmatch(name):
        origin = given["name"][0].origin
        raise BadInput(f"{origin}: expected 1 to 64 letters, digits, '.', '_' or '-', got {shown_key(name)}")


def _unknown_key(name: str, origin: str, known: Iterable[str]) -> BadInput:
    where = origin.removesuffix(f": {shown_key(name)}")
    return BadInput(f"{where}: unknown key {shown_key(name)}{nearest(name, known)}")
