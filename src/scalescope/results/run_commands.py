"""Commands about a stored run: its own request with some settings changed, complete from any folder."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from scalescope.catalog import cards
from scalescope.catalog.measuring import Measuring
from scalescope.catalog.setting import Setting, settings_of
from scalescope.catalog.slurm import Slurm
from scalescope.errors import BadInput
from scalescope.experiment.command_line import (
    COMMAND,
    KNOWN,
    joined,
    placeholders,
    takes_world_size,
    words_of,
)
from scalescope.results.run_folder import EXPERIMENT
from scalescope.results.run_record import COMPARED, UNKNOWN_VERB, RunRecord, read_run_record

PROGRAM = "scalescope"
Argv = tuple[str, ...]
CHECK: Argv = (PROGRAM, "check")
# The flags of measuring verbs that a command may take over from a run folder, which anybody may have written;
# --json-nccl is not among them: it would write where the folder says.
VERB_FLAGS: Mapping[str, frozenset[str]] = {
    "comm": frozenset(("--min-busbw",)),
    "memory": frozenset(),
    "run": frozenset(("--benchmark", "--warmup", "--iters", "--waterfall", "--no-waterfall")),
    "scale": frozenset(("--waterfall", "--no-waterfall")),
    "train": frozenset(
        (
            *("--profile", "--profile-steps", "--profile-ranks", "--profile-ranges-only", "--nsys"),
            "--no-breakdown",
        )
    ),
    "tune": frozenset(
        ("--levers", "--threshold", "--combine", "--no-combine", "--verify-loss", "--keep-numerics")
    ),
}
_FLAG_VALUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,=%/+-]*")


def command_on(
    path: Path,
    verb: str,
    changes: Mapping[str, object] | None = None,
    own_flags: Sequence[str] = (),
    *,
    file: str = EXPERIMENT,
) -> Argv:
    """A verb on the request that the run at `path` stores, with settings changed and flags of the verb.

    Empty where the verb is not one that measures.
    """
    if verb not in VERB_FLAGS:
        return ()
    folder = path.resolve()
    # A budget that was too small for the run is too small for what it advises.
    end = read_run_record(folder).end
    unlimited = {"budget": None} if end is not None and end.why == "budget" else {}
    request = _stored_request(folder)
    settings = with_absolute_paths({**_paths_of(request, folder), **unlimited, **(changes or {})}, folder)
    settings = _usable_with(_command_in(settings) or _command_in(request), settings)
    command = {name: settings.pop(name) for name in (COMMAND,) if name in settings}
    return (
        PROGRAM,
        verb,
        str(folder / file),
        *flags_of(settings),
        *_known_flags(verb, own_flags),
        *flags_of(command),
    )


def repeating_command(path: Path, record: RunRecord) -> Argv:
    """The command that makes the run at `path` once more; empty where there is none."""
    if record.verb in (UNKNOWN_VERB, COMPARED):
        return ()
    return command_on(path, record.verb, own_flags=record.flags)


def _known_flags(verb: str, flags: Sequence[str]) -> Argv:
    """The flags that the verb has, with values that are names or numbers; all others are left out."""
    known: list[str] = []
    words = list(flags)
    while words:
        word = words.pop(0)
        name, separator, value = word.partition("=")
        values = [value] if separator else []
        if not separator and words and not words[0].startswith("-"):
            values = [words.pop(0)]
        if name in VERB_FLAGS[verb] and all(map(_FLAG_VALUE.fullmatch, values)):
            known += [word] if separator else [name, *values]
    return tuple(known)


def _paths_of(request: Mapping[str, tuple[str, ...]], path: Path) -> dict[str, tuple[str, ...]]:
    """The settings of the request that the run at `path` stores that name files."""
    full = with_absolute_paths(request, path)
    return {name: values for name, values in request.items() if values != full[name]}


def _stored_request(path: Path) -> dict[str, tuple[str, ...]]:
    """The settings of a stored request, as they are written; empty where there is none."""
    from scalescope.experiment.yaml_file import read_experiment_file

    try:
        written = read_experiment_file(path / EXPERIMENT)
    except BadInput:  # a run that was imported
        return {}
    return {name: tuple(value.text for value in values) for name, values in written.items()}


def _command_in(settings: Mapping[str, object]) -> str | None:
    """The training command of a request; None without one."""
    value = settings.get(COMMAND)
    first = value[0] if isinstance(value, tuple) and value else value
    return None if not first else str(first)


def _usable_with(command: str | None, settings: Mapping[str, object]) -> dict[str, object]:
    """The settings without those that a training command decides, such as its own batch."""
    if command is None:
        return dict(settings)
    takes = placeholders(command, ()) | ({"world_size"} if takes_world_size(command) else set())
    decided = {*cards.card("workloads", COMMAND).decides, *(name for name in KNOWN if name not in takes)}
    return {name: value for name, value in settings.items() if name not in decided}


def with_absolute_paths(settings: Mapping[str, object], path: Path) -> dict[str, object]:
    """The settings with the whole path of files, which start from where the run at `path` was measured."""
    recorded = read_run_record(path).directory
    base = Path.cwd() if recorded is None else Path(recorded)
    full = dict(settings)
    for name, value in settings.items():
        setting = _setting_named(name)
        if setting is not None and setting.holds_path and value is not None:
            values = value if isinstance(value, tuple) else (value,)
            absolute = _absolute_words if name == COMMAND else _absolute
            full[name] = tuple(absolute(str(each), base) for each in values)
    return full


def _absolute_words(command: str, base: Path) -> str:
    """A training command with the whole path of existing files, and of folders that are written with `/`."""
    words = words_of(command)
    full = [_absolute_word(word, base) for word in words]
    return command if full == words else joined(full)


def _absolute_word(word: str, base: Path) -> str:
    option, separator, text = word.rpartition("=") if word.startswith("-") else ("", "", word)
    path = base / text
    names_path = path.is_file() or ("/" in text and path.is_dir())
    return f"{option}{separator}{path.absolute()}" if text and names_path else word


def _absolute(text: str, base: Path) -> str:
    """A folder, or FILE.py:FUNCTION, with its whole path; what names no existing file stays unchanged."""
    file, separator, function = text.rpartition(":") if ".py:" in text else (text, "", "")
    path = base / os.path.expanduser(file)  # noqa: PTH111, Path's raises without a home
    return f"{path.absolute()}{separator}{function}" if path.exists() else text


def flags_of(settings: Mapping[str, object]) -> Argv:
    """Settings at their values, as the command line takes them; a tuple is a sweep.

    A training command comes last, behind two dashes.
    """
    command = settings.get(COMMAND)
    plain = {n: v for n, v in settings.items() if n != COMMAND and (n, v) != ("workload", COMMAND)}
    flags = tuple(word for name, value in plain.items() for word in _flag_of(name, value))
    if command is None:
        return flags
    text = command[0] if isinstance(command, tuple) else command
    return (*flags, "--", *words_of(str(text)))


def _flag_of(name: str, value: object) -> Argv:
    setting = _setting_named(name)
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        opposite = setting.opposite if setting is not None else None
        return (flag if value else opposite or f"--no-{flag.removeprefix('--')}",)
    if isinstance(value, Mapping):
        return tuple(word for key, text in value.items() for word in (flag, f"{key}={text}"))
    values = value if isinstance(value, tuple) else (value,)
    none_word = "null" if setting is None else setting.none_word
    return (flag, ",".join(none_word if each is None else _text(each) for each in values))


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value)


def _setting_named(name: str) -> Setting | None:
    for benchmark in cards.names("benchmarks"):
        if name in cards.all_settings(benchmark):
            return cards.all_settings(benchmark)[name][0]
    shared = (*settings_of(Measuring), *settings_of(Slurm))
    return next((setting for setting in shared if setting.name == name), None)
