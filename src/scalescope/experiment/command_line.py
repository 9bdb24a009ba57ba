"""Training commands: their words with the values of a trial filled in, and what may be asked with one."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from scalescope.catalog import cards
from scalescope.catalog.placement import Placement
from scalescope.catalog.setting import settings_of
from scalescope.errors import BadInput
from scalescope.experiment.given import Entries
from scalescope.experiment.trial import Trial, Value
from scalescope.secret_variables import with_secrets

COMMAND = "command"  # the workload, and the setting that holds the words
VARY = "vary"
AFTER_DASHES = "-- COMMAND"  # the origin of a command that stands behind two dashes
KNOWN = ("world_size", "batch_size", "global_batch_size")
_NUMBERS_OF_RANKS = ("nodes", "ranks_per_node")  # by node
_ATTACH = "attach"  # for `python -m scalescope.attach --job {attach}`, where no environment reaches the ranks
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_PLAIN = re.compile(r"(?:[A-Za-z0-9@%+=:./_-]|\{[A-Za-z_][A-Za-z0-9_]*\})+")
_EXAMPLES = {"world_size": "--nproc-per-node={world_size}"}
_NUMBER = ("--nproc-per-node", "--nproc_per_node")  # of torchrun
_PYTHON = re.compile(r"python[0-9.]*")
_TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")  # as modules


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandNodes:
    """The nodes that a command can start ranks on; one, unless it runs in a job of several."""

    names: tuple[str, ...] = ("localhost",)
    ranks_per_node: int | None = None  # at most; None: all ranks are on the first node

    @property
    def are_several(self) -> bool:
        return len(self.names) > 1

    def values(self, world_size: int) -> dict[str, int | str]:
        """The values of {nodes}, {ranks_per_node} and {first_node} for this number of ranks."""
        ranks = min(world_size, self.ranks_per_node or world_size)
        return {"nodes": -(-world_size // ranks), "ranks_per_node": ranks, "first_node": self.names[0]}

    def check(self, command: str, world_size: int) -> None:
        """Refuse ranks that do not fill whole nodes, where the command asks how many each has."""
        values = self.values(world_size)
        nodes, ranks = int(values["nodes"]), int(values["ranks_per_node"])
        if not set(_NUMBERS_OF_RANKS) & set(_PLACEHOLDER.findall(command)):
            return
        if nodes > len(self.names):
            raise BadInput(
                f"{world_size} ranks at {ranks} per node require {nodes} nodes, and the job has "
                f"{len(self.names)}; request more nodes or more ranks per node"
            )
        if nodes * ranks != world_size:
            raise BadInput(
                f"{world_size} ranks do not fill nodes of {ranks} ranks; use a multiple of {ranks}"
            )


def words_of(command: str) -> list[str]:
    """The command as a shell would split it; nothing is expanded."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BadInput(f"--command: {error}") from None
    if not words or not words[0]:
        raise BadInput("--command: it is empty")
    return words


def joined(words: Iterable[str]) -> str:
    """The words as one text, which a shell splits into the same words; placeholders need no quotes."""
    return " ".join(word if _PLAIN.fullmatch(word) else shlex.quote(word) for word in words)


def placeholders(command: str, varied: Iterable[str]) -> frozenset[str]:
    """The names in braces that stand for values; other braces are part of the command."""
    return frozenset(_PLACEHOLDER.findall(command)) & {*KNOWN, *varied}


def takes_world_size(command: str, varied: Iterable[str] = ()) -> bool:
    """Whether the number of ranks is a value that the command takes, as a whole or by node."""
    names = {"world_size", *_NUMBERS_OF_RANKS} - set(varied)
    return bool(names & set(_PLACEHOLDER.findall(command)))


def is_python(word: str) -> bool:
    """Whether a word of a command starts Python: `python3`, `/opt/venv/bin/python`."""
    return _PYTHON.fullmatch(PurePath(word).name) is not None


def on_any_ranks(words: Sequence[str]) -> list[str] | None:
    """The command as torchrun starts it, on {world_size} ranks of one node; None where that is not known."""
    program, *rest = words
    if is_python(program):
        rest = [word for word in rest[:1] if word != "-u"] + rest[1:]  # torchrun's ranks are unbuffered
    if rest[1:2] and rest[0] == "-m" and rest[1] in _TORCHRUN and is_python(program):
        return _with_number([program, *rest[:2]], rest[2:])
    if PurePath(program).name == "torchrun":
        return _with_number([program], rest)
    if not is_python(program) or not rest or not (rest[0] == "-m" or rest[0].endswith(".py")):
        return None
    # The torchrun on the path may belong to another Python than one that is named by its path.
    torchrun = ["torchrun"] if "/" not in program else [program, *f"-m {_TORCHRUN[0]}".split()]
    return [*torchrun, "--standalone", _EXAMPLES["world_size"], *rest]


def number_of_ranks(words: Sequence[str]) -> int | None:
    """The number that a command gives torchrun; None where it gives none."""
    for index, word in enumerate(words):
        name, _, value = word.partition("=")
        if name in _NUMBER:
            text = value or "".join(words[index + 1 : index + 2])
            return int(text) if re.fullmatch("[0-9]{1,6}", text) else None
        if word.endswith(".py"):  # what follows is the script's
            return None
    return None


def _with_number(torchrun: Sequence[str], rest: Sequence[str]) -> list[str] | None:
    """The words with {world_size} as the number of ranks; None for several nodes."""
    words = list(rest)
    for index, word in enumerate(words):
        name, separator, value = word.partition("=")
        if name == "--nnodes" and (value or words[index + 1 : index + 2]) not in ("1", ["1"]):
            return None
        if name in _NUMBER and separator:
            words[index] = f"{name}={{world_size}}"
        elif name in _NUMBER:
            words[index + 1 : index + 2] = ["{world_size}"]
        elif word.endswith(".py"):  # what follows is the script's
            break
    if not takes_world_size(" ".join(words)):
        words.insert(0, _EXAMPLES["world_size"])
    return [*torchrun, *words]


def filled_words(trial: Trial, job_file: str | None = None, nodes: CommandNodes | None = None) -> list[str]:
    """The words of a trial's command with its values and secrets; `{attach}` is the file of the job."""
    values: dict[str, Any] = dict((nodes or CommandNodes()).values(trial.world_size))
    values |= {name: trial.settings.get(name) for name in KNOWN}
    values |= {name: with_secrets(text) for name, text in trial.varied.items()}
    if job_file is not None:
        values[_ATTACH] = job_file
    return [_PLACEHOLDER.sub(lambda match: _value(match, values), word) for word in words_of(trial.command)]


def _value(match: re.Match[str], values: Mapping[str, Any]) -> str:
    name = match[1]
    if name not in values:
        return with_secrets(match[0])
    if values[name] is None:
        raise BadInput(f"the command has {{{name}}}, but no value for it; add --{name.replace('_', '-')}")
    return str(values[name])


def can_be_filled(trial: Trial) -> bool:
    """Whether the command takes the batch of a trial: one without a placeholder knows only its own."""
    asked = {name for name in ("batch_size", "global_batch_size") if trial.settings.get(name) is not None}
    return asked <= placeholders(trial.command, trial.varied)


# What may be asked


def asks_for_command(given: Entries) -> bool:
    """Whether a request is about a training command."""
    return COMMAND in given


def check_entries(benchmark: str, verb: str, given: Entries) -> None:
    """Refuse what cannot be given with a command, what only a command takes, and a command to other verbs."""
    if not asks_for_command(given):
        _check_without(given)
        return
    command = given[COMMAND][0]
    if not cards.card("benchmarks", benchmark).takes_commands:
        raise BadInput(f"{command.origin}: {verb} cannot measure a command; train, scale, tune and run can")
    for workload in given.get("workload", ()):
        if workload.text != COMMAND:
            raise BadInput(f"{workload.origin} cannot be used with a command; give only one of them")
    decided = decided_by_script(benchmark)
    for name, values in given.items():
        if name in decided:
            raise BadInput(f"{values[0].origin} cannot be used with a command: the script decides")


def decided_by_script(benchmark: str) -> set[str]:
    """The settings that a training command decides."""
    return set(cards.all_settings(benchmark)) - _usable(benchmark)


def _usable(benchmark: str) -> set[str]:
    """The settings that a trial of a command has."""
    owners: tuple[type[Any], ...] = (Placement, cards.card("benchmarks", benchmark), *cards.command_cards())
    settings = {setting.name for owner in owners for setting in settings_of(owner)}
    return settings - set(cards.card("workloads", COMMAND).decides)


def _check_without(given: Entries) -> None:
    """Refuse settings of commands where there is none."""
    shared = {setting.name for owner in cards.known_cards() for setting in settings_of(owner)}
    alone = {setting.name for owner in cards.command_cards() for setting in settings_of(owner)} - shared
    for name, values in given.items():
        if name in alone or name.startswith(f"{VARY}."):
            raise BadInput(f"{values[0].origin} requires a training command: put it after --")


def check_command(settings: Mapping[str, tuple[Value, ...]], given: Entries) -> None:
    """Refuse a command whose placeholders and values do not fit together."""
    command = str(settings[COMMAND][0])
    varied = {name for combination in settings.get(VARY, ()) for name in combination or ()}
    names = placeholders(command, varied)
    for name in sorted(varied - names):
        raise BadInput(f"{given[f'{VARY}.{name}'][0].origin}: the command has no {{{name}}}")
    for name in ("batch_size", "global_batch_size"):
        flag = f"--{name.replace('_', '-')}"
        if name in settings and name not in names:
            raise BadInput(
                f"{given[name][0].origin}: write {{{name}}} in the command where its value belongs"
            )
        if name in names and name not in settings:
            raise BadInput(f"the command has {{{name}}}, but no value for it; add {flag}")
    if len(settings.get("world_size", ())) > 1 and not takes_world_size(command, varied):
        raise BadInput(
            f"{given['world_size'][0].origin}: several world sizes require {{world_size}} in the command, "
            f"for instance {_EXAMPLES['world_size']}"
        )


def check_varied_name(name: str, origin: str) -> None:
    """Refuse a name that no placeholder can have, or that stands for something else."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"{origin}: {name!r} is not a name of letters, digits and _")
    if name in KNOWN:
        flag = f"--{name.replace('_', '-')}"
        raise BadInput(f"{origin}: {{{name}}} is the value of {flag}; give that flag")
