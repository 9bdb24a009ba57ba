"""Mistakes in directives, variables and output folders."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from scalescope.launch.slurm.lint.facts import (
    LaunchCommand,
    LintedJob,
    Mistake,
    assignments,
    commands,
    expanded,
    line_of,
    slurm_options,
    unquoted,
)
from scalescope.launch.slurm.lint.resources import is_for_several_nodes

# ---- Mistakes that keep sbatch from reading a script, or lines of it


def refused(script: str) -> Iterator[Mistake]:
    """What sbatch refuses before it reads anything."""
    if script.startswith("\ufeff"):
        yield Mistake(1, "a byte order mark before #!: sbatch rejects the script", "save it without one")
    elif not script.startswith("#!"):
        yield Mistake(1, "no #! at the start: sbatch rejects the script", "make the first line #!/bin/bash")
    if "\r\n" in script:
        yield Mistake(
            1 + script.count("\n", 0, script.index("\r\n")),
            "a DOS line break: sbatch rejects scripts that contain any",
            r"remove them: sed -i 's/\r$//' SCRIPT",
        )


def indented_directive(job: LintedJob) -> Iterator[Mistake]:
    for directive in job.script.directives:
        if directive.is_indented and directive.comes_after is None:
            yield Mistake(
                directive.number,
                "an indented #SBATCH: sbatch reads it only at the start of a line, so it has no effect",
                "remove the space before it",
            )


def late_directive(job: LintedJob) -> Iterator[Mistake]:
    for directive in job.script.directives:
        if directive.comes_after is not None:
            yield Mistake(
                directive.number,
                f"sbatch ignores #SBATCH after the first command (line {directive.comes_after}), "
                "so it has no effect",
                "move it to the top",
            )


def commented_directive(job: LintedJob) -> Iterator[Mistake]:
    """An option that another line gives was put aside on purpose."""
    read = {
        name
        for directive in job.script.directives
        if not directive.is_comment
        for name in slurm_options(directive.text)
    }
    for directive in job.script.directives:
        if directive.is_comment and not read.issuperset(slurm_options(directive.text)):
            yield Mistake(
                directive.number,
                "a space between # and SBATCH: to sbatch this is a comment, so it has no effect",
                f"#SBATCH {directive.text.strip()}",
            )


# ---- Output to a folder that does not exist: SLURM creates none, and the job ends before its script begins


def missing_folder(job: LintedJob) -> Iterator[Mistake]:
    said = set()
    for option in ("output", "error"):
        folder = job.options.get(option, "").rpartition("/")[0]
        if not folder or "%" in folder or folder in said or not _is_missing(folder, job):
            continue
        said.add(folder)
        yield Mistake(
            line_of(option, job),
            f"--{option}: folder {folder} does not exist, so the job fails immediately and without output",
            _fix(folder, job),
        )


def _is_missing(folder: str, job: LintedJob) -> bool:
    """In every folder that the job may start in.

    An absolute path whose parent is missing too may be on another machine.
    """
    path = Path(folder)
    if path.is_absolute():
        return _is_folder(path) is False and _is_folder(path.parent) is True
    starts = [start / job.options.get("chdir", "") for start in job.folders]
    return bool(starts) and all(_is_folder(start) and _is_folder(start / path) is False for start in starts)


def _is_folder(path: Path) -> bool | None:
    """None where that cannot be seen."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None


def _fix(folder: str, job: LintedJob) -> str:
    if folder.startswith(("~", "$")):
        return "write the path out: sbatch expands neither ~ nor variables in #SBATCH lines"
    made = _made_at(folder, job)
    too_late = f" (the one in line {made} comes too late: SLURM opens the file first)" if made else ""
    return f"mkdir -p {folder} before sbatch{too_late}"


def _made_at(folder: str, job: LintedJob) -> int | None:
    """The line of the script that makes the folder."""
    wanted = os.path.normpath(folder)
    for line in job.script.lines:
        for command in commands(line.text):
            made = [os.path.normpath(unquoted(expanded(word, job.variables))) for word in command.words]
            if "mkdir" in made and any(path == wanted or path.startswith(wanted + "/") for path in made):
                return line.number_at(command.offset)
    return None


# ---- Variables that keep nodes from reaching each other, or that make every step slow


_Place = tuple[int, int]
_BEFORE_THE_SCRIPT, _AFTER_THE_SCRIPT = (0, 0), (1 << 62, 0)
_CONDITION_BEGINS, _CONDITION_ENDS = frozenset({"if", "case"}), frozenset({"fi", "esac"})


@dataclass(frozen=True, slots=True)
class _Setting:
    """A variable that gets a value, for one command or for all that follow."""

    name: str
    value: str
    number: int
    place: _Place
    of_launch: LaunchCommand | None = None
    is_certain: bool = True
    """Not in a condition, which is put there on purpose."""


@dataclass(frozen=True, slots=True)
class _Costly:
    """A variable for debugging, and what it costs."""

    name: str
    value: str
    what: str
    may_be_intended: bool = True
    between_nodes: bool = False


_COSTLY = (
    _Costly(
        "(?:CUDA|HIP)_LAUNCH_BLOCKING",
        "[1-9][0-9]*",
        "every kernel launch waits until its kernel has ended",
        may_be_intended=False,
    ),
    _Costly("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "before every collective all ranks compare what they call"),
    _Costly("NCCL_DEBUG", "TRACE", "NCCL logs every call"),
    _Costly("NCCL_P2P_DISABLE", "[1-9][0-9]*", "GPUs of a node exchange data through host memory"),
    _Costly(
        "NCCL_IB_DISABLE",
        "[1-9][0-9]*",
        "nodes exchange data over TCP, not InfiniBand or RoCE",
        between_nodes=True,
    ),
)


def loopback_between_nodes(job: LintedJob) -> Iterator[Mistake]:
    """A list of interfaces may hold others; ^ excludes."""
    names, loopback = "(?:NCCL|GLOO|TP)_SOCKET_IFNAME", "=?lo0?(?:,=?lo0?)*"
    for setting in _in_effect(job, names, loopback, between_nodes=True):
        yield Mistake(
            setting.number,
            f"{setting.name}={setting.value} on {job.nodes} nodes: the loopback reaches no other node",
            f"remove it, or name the interface that connects the nodes, such as {setting.name}=ib0",
        )


def left_from_debugging(job: LintedJob) -> Iterator[Mistake]:
    for costly in _COSTLY:
        for setting in _in_effect(job, costly.name, costly.value, between_nodes=costly.between_nodes):
            yield Mistake(
                setting.number,
                f"{setting.name}={setting.value} slows training down: {costly.what}",
                "remove it, unless this machine needs it or you are debugging"
                if costly.may_be_intended
                else "remove it",
                costly.may_be_intended,
            )


def _in_effect(job: LintedJob, name: str, value: str, *, between_nodes: bool) -> Iterator[_Setting]:
    """Settings with such a name and value that something is launched with.

    What a script launches may not be known, so a setting that nothing takes back counts too, unless only
    ranks of several nodes are concerned.
    """
    settings = [
        replace(setting, value=unquoted(expanded(setting.value, job.variables)))
        for setting in _settings(job)
        if re.fullmatch(name, setting.name)
    ]
    for setting in settings:
        if not setting.is_certain or not re.fullmatch(value, setting.value, re.IGNORECASE):
            continue
        end = min(
            (later.place for later in settings if _takes_back(later, setting)), default=_AFTER_THE_SCRIPT
        )
        reached = [setting.of_launch] if setting.of_launch else _launched(job, setting.place, end)
        if between_nodes:
            reached = [launch for launch in reached if job.nodes > 1 and is_for_several_nodes(launch)]
        if reached or (end == _AFTER_THE_SCRIPT and not between_nodes):
            yield setting


def _launched(job: LintedJob, begin: _Place, end: _Place) -> list[LaunchCommand]:
    return [launch for launch in job.ranks if begin < _place(launch) < end]


def _takes_back(later: _Setting, setting: _Setting) -> bool:
    is_other = later.name == setting.name and later.value != setting.value
    return is_other and later.of_launch is None and later.place > setting.place


def _place(launch: LaunchCommand) -> _Place:
    return launch.line.number, launch.command.offset


_EXPORTED = re.compile(r"(?:^|,)([A-Za-z_]\w*)=([^,]*)")


def _settings(job: LintedJob) -> Iterator[_Setting]:
    """In the order of the script, values as they are written; `unset` makes them empty."""
    for directive in job.script.directives:
        for match in _EXPORTED.finditer(slurm_options(directive.text).get("export", "")):
            yield _Setting(match[1], match[2], directive.number, _BEFORE_THE_SCRIPT)
    launches = {_place(launch): launch for launch in job.launches}
    depth = 0
    for line in job.script.lines:
        given = {offset: (name, value) for name, value, offset in assignments(line)}
        ended_by = ""
        for command in commands(line.text):
            depth += (command.words[0] in _CONDITION_BEGINS) - (command.words[0] in _CONDITION_ENDS)
            is_certain = depth == 0 and ended_by not in {"&&", "||", ")"}
            ended_by = command.ended_by
            place = line.number, command.offset
            if launch := launches.get(place):
                yield from _settings_of_launch(launch, is_certain=is_certain)
            elif command.words[0] == "unset":
                yield from (_Setting(name, "", line.number, place) for name in command.words[1:])
            else:
                end = command.offset + len(command.text)
                for offset in (offset for offset in given if command.offset <= offset < end):
                    name, value = given[offset]
                    yield _Setting(name, value, line.number_at(offset), place, is_certain=is_certain)


_GIVEN_TO_LAUNCH = re.compile(
    r"(?<![\w$-])(?:(?:SINGULARITY|APPTAINER)ENV_)?(?P<name>[A-Z][A-Z0-9_]*)="
    r"[\"']?(?P<value>[\w=^-]+(?:,(?!\w+=|ALL\b)[\w=^-]+)*)"
)


def _settings_of_launch(launch: LaunchCommand, *, is_certain: bool) -> Iterator[_Setting]:
    """Before the command, in srun's --export, by env, in a shell's lines or for a container."""
    for match in _GIVEN_TO_LAUNCH.finditer(launch.command.text):
        number = launch.line.number_at(launch.command.offset + match.start())
        yield _Setting(match["name"], match["value"], number, _place(launch), launch, is_certain)
