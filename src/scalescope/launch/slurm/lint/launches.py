"""What the commands of a job script start on its nodes: launchers, ranks, or something else."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalescope.launch.slurm.lint.script import (
    JobScript,
    ScriptLine,
    ShellCommand,
    commands,
    expanded,
    unquoted,
)

LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed"})
"""Programs of which a node needs one, because each starts the ranks of its node."""

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_BEFORE_COMMANDS = frozenset(
    {"if", "then", "else", "elif", "do", "while", "until", "!", "{", "time", "exec", "nohup", "eval", "env"}
)
_WRAPPERS = frozenset(
    {
        "apptainer",
        "singularity",
        "docker",
        "podman",
        "enroot",
        "shifter",
        "numactl",
        "taskset",
        "nice",
        "ionice",
    }
    | {"timeout", "stdbuf", "setsid", "conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "nsys", "ncu"}
    | {"mpirun", "mpiexec"}
)
_SHELLS = frozenset({"bash", "sh", "zsh"})
_PYTHON = re.compile(r"python[0-9.]*")
_SRUN_FLAGS = frozenset(  # they take no value, so the next word may be the command
    {
        "-l",
        "-u",
        "-K",
        "-k",
        "-O",
        "-s",
        "-E",
        "-v",
        "-Q",
        "-X",
        "--label",
        "--unbuffered",
        "--kill-on-bad-exit",
    }
    | {
        "--no-kill",
        "--overcommit",
        "--oversubscribe",
        "--exclusive",
        "--exact",
        "--overlap",
        "--pty",
        "--whole",
    }
    | {"--preserve-env", "--verbose", "--quiet", "--disable-status", "--contiguous", "--container-mount-home"}
    | {"--no-container-mount-home", "--container-writable", "--no-container-entrypoint"}
)
_HARMLESS = frozenset(
    {
        "hostname",
        "nvidia-smi",
        "rocm-smi",
        "mkdir",
        "rm",
        "cp",
        "mv",
        "ls",
        "cat",
        "tar",
        "rsync",
        "unzip",
        "date",
    }
    | {"env", "printenv", "sleep", "true", "ip", "df", "free", "lscpu", "sbcast", "test", "id"}
)


@dataclass(frozen=True, slots=True)
class Started:
    """The program that a command comes down to, past srun, containers and shells."""

    program: str
    arguments: str
    step: str | None = None
    """srun's own options; None without srun."""

    @property
    def is_launcher(self) -> bool:
        return self.program in LAUNCHERS

    @property
    def may_be_ranks(self) -> bool:
        return self.program not in _HARMLESS and not self._is_tool

    @property
    def _is_tool(self) -> bool:
        """Python that is no training: a module like pip or venv, or a line of code."""
        if re.match(r"-m (?:pip|venv|ensurepip|json|http|zipfile|tarfile)\b", self.program):
            return True
        is_line = re.match(r"(?:-\w+\s+)*(?:-c|-V|--version)\b", self.arguments)
        return self.program.startswith("python") and bool(is_line)


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """A started program in its place in the script."""

    number: int
    line: ScriptLine
    command: ShellCommand
    started: Started


def launches(script: JobScript, known: dict[str, str]) -> Iterator[LaunchCommand]:
    """Everything that may be ranks, in the order of the script."""
    for line in script.lines:
        for command in commands(line.text):
            if started := _first_launcher(expanded(command.text, known), None):
                yield LaunchCommand(line.number_at(command.offset), line, command, started)


def _first_launcher(text: str, step: str | None) -> Started | None:
    programs = [program for command in commands(text) if (program := _started(command.words, step))]
    return max(programs, key=lambda program: (program.is_launcher, program.may_be_ranks), default=None)


def _started(words: Sequence[str], step: str | None) -> Started | None:
    """Look past what only stands before a command; a name among the arguments of others means nothing."""
    within_wrapper = False
    for index, word in enumerate(words):
        name = unquoted(word).rsplit("/", 1)[-1]
        if _names_a_program(name) and (known := _known(name, words[index + 1 :], step)):
            return known
        if name == "srun" and step is None:
            return _started_by_srun(words[index + 1 :])
        if name in _SHELLS:
            return _started_by_shell(words[index + 1 :], step)
        if name in _WRAPPERS or word.startswith(("$", '"$')):
            within_wrapper = True
        elif not within_wrapper and name not in _BEFORE_COMMANDS and not re.match(r"\w+\+?=", word):
            return None if step is None else Started(name, " ".join(words[index + 1 :]), step)
    return None


def _known(name: str, rest: Sequence[str], step: str | None) -> Started | None:
    if name not in LAUNCHERS and not _PYTHON.fullmatch(name):
        return None
    arguments = " ".join(rest)
    if name in {"torchrun", "deepspeed"} or (name == "accelerate" and rest[:1] == ("launch",)):
        return Started(name, arguments, step)
    if name == "accelerate":
        return None
    module = re.match(r"(?:-\S+\s+)*?-m\s+([\w.]+)", arguments)
    return Started(_MODULES.get(module[1], f"-m {module[1]}") if module else name, arguments, step)


def _started_by_srun(words: Sequence[str]) -> Started | None:
    index = 0
    while index < len(words) and words[index].startswith(("-", "$", '"$')):
        word = words[index]
        index += 1
        takes_next = re.fullmatch(r"-[A-Za-z]|--[a-z-]+", word) and word not in _SRUN_FLAGS
        if takes_next and index < len(words) and not words[index].startswith("-"):
            index += not _names_a_program(words[index])
    return _started(words[index:], " ".join(words[:index])) or Started("", "", " ".join(words[:index]))


def _names_a_program(word: str) -> bool:
    name = unquoted(word).rsplit("/", 1)[-1]
    return name in LAUNCHERS | _WRAPPERS | _SHELLS or bool(_PYTHON.fullmatch(name))


def _started_by_shell(words: Sequence[str], step: str | None) -> Started | None:
    for index, word in enumerate(words[:-1]):
        if re.fullmatch(r"-[a-z]*c", word):
            code = unquoted(words[index + 1]).replace("\\\n", " ").replace("\n", " ; ")
            return _first_launcher(code, step)
    return Started("bash", " ".join(words), step)
