"""On which nodes of the job a command of the script runs."""

import re

from scalescope.launch.slurm.lint.facts import LintedJob, number_in, slurm_options
from scalescope.launch.slurm.lint.launches import LaunchCommand

FIRST_NODE = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
PORT_OF_JOB = "$((20000 + SLURM_JOB_ID % 12000))"
"""One for every job, so that two on the same node do not use the same."""

_OTHER_NODES = re.compile(r"\b(?:srun|ssh|pdsh|clush|mpirun|mpiexec|parallel|blaunch)\b")
_NODES_FLAG = re.compile(
    r"--(?:nnodes|num[-_]machines|num[-_]nodes)(?:=|\s+)[\"']?(?:[0-9]+:)?(?P<most>[^\s\"':]+)"
)


def is_for_several_nodes(launch: LaunchCommand) -> bool:
    """Whether ranks of several nodes have to meet; a launcher for one node may run on each of several."""
    if "--standalone" in launch.started.arguments:
        return False
    if launch.started.is_launcher and (asked := _NODES_FLAG.search(launch.started.arguments)):
        return asked["most"] != "1"
    return runs_on_other_nodes(launch) and not is_on_one_node(launch)


def runs_on_other_nodes(launch: LaunchCommand) -> bool:
    """Whether something stands before the command that starts it elsewhere than where the script runs."""
    return bool(_OTHER_NODES.search(launch.command.text))


def is_on_one_node(launch: LaunchCommand) -> bool:
    step = slurm_options(launch.started.step or "")
    return 1 in {number_in(step.get("nodes")), number_in(step.get("ntasks"))}


def is_elsewhere_too(job: LintedJob) -> bool:
    """Whether the script may start ranks on other nodes; an srun that only asks them something does not."""
    by_srun = any(launch.started.step is not None for launch in job.ranks)
    return by_srun or any(
        match[0] != "srun" for line in job.script.lines for match in _OTHER_NODES.finditer(line.text)
    )


def nodes_of_launch(launch: LaunchCommand, job: LintedJob) -> int | None:
    """On how many nodes a launcher is started; None where the script does not say, or others may join it.

    Those are the jobs of an array, or steps of one node each that run at the same time.
    """
    is_one_of_several = launch.command.ended_by == "&" and is_on_one_node(launch)
    if is_one_of_several or "array" in job.options or "a" in job.options:
        return None
    if launch.started.step is None:
        if is_elsewhere_too(job):
            return None
        return _whole(job.options.get("nodes", ""))  # where srun is missing, which is a mistake of its own
    return _whole(slurm_options(launch.started.step).get("nodes", job.options.get("nodes", "")))


def line_of_nodes(launch: LaunchCommand) -> int:
    """The line of the number of nodes where the command has it, else (in a variable) of the command."""
    match = _NODES_FLAG.search(launch.command.text)
    return launch.line.number_at(launch.command.offset + match.start()) if match else launch.number


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch("[1-9][0-9]{0,5}", text) else None
