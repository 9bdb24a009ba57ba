"""What the rules read, and the mistakes they find."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from scalescope.launch.slurm.lint.launches import LaunchCommand, launches
from scalescope.launch.slurm.lint.script import Directive, JobScript, ScriptLine, variables


@dataclass(frozen=True, slots=True)
class Mistake:
    """One finding in a job script."""

    line: int
    what: str
    fix: str
    may_be_intended: bool = False
    """Then it is a warning, which leaves the exit code as it is."""


@dataclass(frozen=True, slots=True)
class LintedJob:
    """What the rules read."""

    script: JobScript
    launches: tuple[LaunchCommand, ...]
    options: dict[str, str]
    """Of all directives, also those that sbatch does not read: those are reported once, by another rule."""
    variables: dict[str, str]
    folders: tuple[Path, ...] = ()
    """Where the script may be submitted, if that is known."""

    @property
    def launchers(self) -> list[LaunchCommand]:
        return [launch for launch in self.launches if launch.started.is_launcher]

    @property
    def ranks(self) -> list[LaunchCommand]:
        """Launchers, and what may be ranks by itself."""
        return [launch for launch in self.launches if launch.started.may_be_ranks]

    @property
    def nodes(self) -> int:
        return number_in(self.options.get("nodes")) or 1

    @property
    def has_whole_nodes(self) -> bool:
        return self.options.get("exclusive") == ""


def job_of(script: JobScript, folders: tuple[Path, ...]) -> LintedJob:
    """Gather what the rules read."""
    directives = sorted(
        script.directives, key=lambda directive: not directive.is_comment
    )  # what is no comment counts
    options = {name: text for directive in directives for name, text in slurm_options(directive.text).items()}
    known = variables(script.lines)
    return LintedJob(script, tuple(launches(script, known)), options, known, folders)


def number_in(text: str | None) -> int | None:
    match = re.match(r"[0-9]+", text or "")
    return int(match[0]) if match else None


_SHORT = {
    "n": "ntasks",
    "N": "nodes",
    "c": "cpus-per-task",
    "G": "gpus",
    "o": "output",
    "e": "error",
    "D": "chdir",
}
_ALIAS = {"tasks-per-node": "ntasks-per-node"}
_OPTION = re.compile(r"(?:^|\s)(?:--([a-z][a-z-]*)(?:[=\s]\s*([^\s-]\S*))?|-([A-Za-z])\s*=?\s*([^\s-]\S*)?)")


def slurm_options(text: str) -> dict[str, str]:
    """SLURM's options in a line, under their long names."""
    options: dict[str, str] = {}
    for match in _OPTION.finditer(text):
        name = match[1] or _SHORT.get(match[3], match[3])
        options[_ALIAS.get(name, name)] = (match[2] or match[4] or "").strip("\"'")
    return options


@dataclass(frozen=True, slots=True)
class Tasks:
    """How many tasks a step has on a node, and which option of the job or the step sets it."""

    per_node: int | None
    """None where only the shell knows."""
    option: str | None
    is_of_step: bool


def tasks_of(step: dict[str, str], job: LintedJob) -> Tasks:
    """As srun counts: its own --ntasks, else the tasks of the job, else its own --ntasks-per-node.

    sbatch puts the job's tasks into SLURM_NTASKS, against which srun does not honour --ntasks-per-node.
    """
    nodes = number_in(step.get("nodes")) or job.nodes
    if "ntasks" in step:
        return Tasks(_divided(number_in(step["ntasks"]), nodes), "ntasks", is_of_step=True)
    are_nodes_given = "nodes" in job.options
    if "ntasks" in job.options and (are_nodes_given or "ntasks-per-node" not in job.options):
        return Tasks(_divided(number_in(job.options["ntasks"]), nodes), "ntasks", is_of_step=False)
    if "ntasks-per-node" in job.options:
        per_node = number_in(job.options["ntasks-per-node"])
        of_job = None if per_node is None else per_node * max(nodes, job.nodes)
        return Tasks(_divided(of_job, nodes), "ntasks-per-node", is_of_step=False)
    if "ntasks-per-node" in step:
        return Tasks(number_in(step["ntasks-per-node"]), "ntasks-per-node", is_of_step=True)
    return Tasks(1, None, is_of_step=False)


def _divided(tasks: int | None, nodes: int) -> int | None:
    return None if tasks is None else math.ceil(tasks / nodes)


def all_lines(job: LintedJob) -> list[Directive | ScriptLine]:
    return [*job.script.directives, *job.script.lines]


def line_of(option: str | None, job: LintedJob) -> int:
    """The last one counts, as for sbatch; a comment only where there is no other."""
    having = [directive for directive in job.script.directives if option in slurm_options(directive.text)]
    return max(having, key=lambda directive: (not directive.is_comment, directive.number)).number
