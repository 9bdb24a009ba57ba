"""The command that was meant: where a training script stands in the place of an experiment file, and where a
command whose ranks are to be compared takes no number of ranks."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from scalescope.experiment.command_line import is_python, joined, on_any_ranks

Flag = list[str]  # a flag, with its value
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "srun", "mpirun", "bash", "sh")
_RUN_BY = {".py": ("python", "python3"), ".sh": ("bash",)}


def split_at_script(
    arguments: Sequence[str], options: Iterable[click.Parameter]
) -> tuple[list[Flag], list[str]] | None:
    """The flags in front of a training command, and that command.

    None where the first word that is not a flag is neither a script that exists nor what starts one.
    """
    by_name = {name: option for option in options for name in (*option.opts, *option.secondary_opts)}
    flags: list[Flag] = []
    words = list(arguments)
    while words and words[0].startswith("-"):
        option = by_name.get(name_of(words))
        if not isinstance(option, click.Option):
            return None  # that is reported then
        length = 1 if option.is_flag or "=" in words[0] else 2
        flags.append(words[:length])
        words = words[length:]
    return (flags, words) if words and _starts_training(words[0]) else None


def name_of(flag: Flag) -> str:
    """`--window` of `--window=1s`."""
    return flag[0].partition("=")[0]


def _starts_training(word: str) -> bool:
    if Path(word).suffix in _RUN_BY:
        return Path(word).is_file()
    return is_python(word) or Path(word).name in _LAUNCHERS


def with_arguments(words: Sequence[str], arguments: Iterable[Flag]) -> list[str]:
    """The training command that can be started, with these arguments of its script before the others."""
    programs = _RUN_BY.get(Path(words[0]).suffix)
    command = list(words) if programs is None else [_first_found(programs), *words]
    scripts = [index for index, word in enumerate(command) if Path(word).suffix in _RUN_BY]
    end = scripts[0] + 1 if scripts else len(command)
    return [*command[:end], *(word for argument in arguments for word in argument), *command[end:]]


def _first_found(programs: Sequence[str]) -> str:
    import shutil  # takes long to load, for what only mistakes need

    return next((program for program in programs if shutil.which(program)), programs[0])


def line_of(verb: str, flags: Iterable[Flag], command: Sequence[str]) -> str:
    """The whole command line, for a shell; `verb` is what comes before the flags."""
    ours = shlex.join(word for flag in flags for word in flag)
    return " ".join(filter(None, (verb, ours, "--", joined(command))))


def on_several_ranks(verb: str, flags: Sequence[Flag], command: Sequence[str]) -> str:
    """What to type to measure a command on several ranks, or what its script lacks for that."""
    from scalescope.analysis.commands import obstacle

    problem = obstacle(command, Path.cwd())
    if problem is not None:
        alone = line_of("scalescope train", (), command)
        return f"{problem}; to measure one rank: {alone}"
    started = on_any_ranks(command)
    if started is None:
        return "write {world_size} in the command where its launcher takes the number of ranks"
    return line_of(verb, flags, started)
