"""Mistakes in what a job asks for: nodes, GPUs, cores and tasks."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from scalescope.launch.slurm.lint.facts import (
    LaunchCommand,
    LintedJob,
    Mistake,
    ScriptLine,
    Tasks,
    all_lines,
    line_of,
    number_in,
    slurm_options,
    tasks_of,
)

# ---- On which nodes of the job a command of the script runs


FIRST_NODE = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
PORT_OF_JOB = "$((20000 + SLURM_JOB_ID % 12000))"
"""One per job: two jobs on the same node do not use the same."""

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


# ---- Mistakes in what is requested of a node: tasks, GPUs, cores, threads


_RANKS_FLAG = {"torchrun": "--nproc_per_node", "accelerate": "--num_processes", "deepspeed": "--num_gpus"}
_RANKS = re.compile(r"--(?:nproc[-_]per[-_]node|num[-_]gpus)(?:=|\s+)[\"']?([0-9]+)(?![\w$])")
_GPUS = re.compile(r"(?P<kind>(?:[A-Za-z][\w.-]*:)?)(?P<number>[0-9]+)")
_GPU_GRES = re.compile(
    r"(?P<kind>gpu(?::[A-Za-z][\w.-]*)?(?::(?=[0-9]+(?:\(|$)))?)(?P<number>[0-9]*)(?:\(.*\))?"
)


def several_launchers(job: LintedJob) -> Iterator[Mistake]:
    for launch in job.launchers:
        step = slurm_options(launch.started.step or "")
        tasks = tasks_of(step, job)
        if launch.started.step is None or tasks.per_node is None or tasks.per_node < 2:
            continue
        what = f"{tasks.per_node} tasks per node with {launch.started.program}: "
        if not tasks.is_of_step and step.get("ntasks-per-node") == "1":
            what += "srun ignores --ntasks-per-node if the job has more tasks"
            yield Mistake(launch.number, what, "srun --ntasks=$SLURM_NNODES --ntasks-per-node=1")
            continue
        yield Mistake(
            launch.number if tasks.is_of_step else line_of(tasks.option, job),
            what + "each task starts a launcher with its own ranks",
            _one_task_a_node(tasks, launch.started.program),
        )


def _one_task_a_node(tasks: Tasks, program: str) -> str:
    instead = " instead of --ntasks" if tasks.option == "ntasks" else ""
    ranks = f"{program}'s {_RANKS_FLAG[program]} for the ranks"
    return f"use one task per node (--ntasks-per-node=1{instead}) and {ranks}"


def pmix(job: LintedJob) -> Iterator[Mistake]:
    for line in all_lines(job):
        if match := re.search(r"--mpi[=\s]\s*[\"']?pmix", line.text):
            yield Mistake(
                line.number_at(match.start()) if isinstance(line, ScriptLine) else line.number,
                "--mpi=pmix fails where SLURM was built without PMIx, and torch does not use it",
                "remove it, or use --mpi=none",
            )


def gpus_per_task(job: LintedJob) -> Iterator[Mistake]:
    """A task that has all GPUs of its node is as good as a node that has them."""
    for launch in job.launchers:
        step = slurm_options(launch.started.step or "")
        gpus = step.get("gpus-per-task", job.options.get("gpus-per-task"))
        if gpus is None or not _is_short_of_gpus(launch, gpus, tasks_of(step, job).per_node or 1):
            continue
        program = launch.started.program
        yield Mistake(
            launch.number if "gpus-per-task" in step else line_of("gpus-per-task", job),
            f"GPUs per task with {program}: {program} is one task, whose ranks share its GPUs",
            "request the GPUs per node: --gpus-per-node=N",
        )


def _is_short_of_gpus(launch: LaunchCommand, gpus: str, tasks: int) -> bool:
    """Under srun a task sees its own; a script that starts the launcher itself sees those of all tasks."""
    of_task = re.search(r"[0-9]+$", gpus)
    ranks = _RANKS.search(launch.started.arguments)
    visible = int(of_task[0]) * (tasks if launch.started.step is None else 1) if of_task else math.inf
    is_one_of_several = launch.started.step is not None and tasks > 1
    return is_one_of_several or (ranks is not None and visible < int(ranks[1]))


def more_ranks_than_gpus(job: LintedJob) -> Iterator[Mistake]:
    if job.has_whole_nodes:  # with all their GPUs
        return
    for launch in job.launchers:
        gpus = _gpus_of_node(slurm_options(launch.started.step or "")) or _gpus_of_node(job.options)
        ranks = _RANKS.search(launch.started.arguments)
        if gpus is None or ranks is None or int(ranks[1]) <= gpus.number:
            continue
        flag = _RANKS_FLAG[launch.started.program]
        yield Mistake(
            _line_of_ranks(launch),
            f"{ranks[1]} ranks on a node with {gpus.number} requested GPU{'s'[: gpus.number > 1]}",
            f"{flag}={gpus.number}, or {gpus.option}{ranks[1]} instead of {gpus.option}{gpus.number}",
        )


def more_ranks_than_gpus_of_the_job(job: LintedJob) -> Iterator[Mistake]:
    """--gpus is for all nodes together; where a node's are given too, that rule tells."""
    gpus = _GPUS.fullmatch(job.options.get("gpus", ""))
    if job.has_whole_nodes or gpus is None or int(gpus["number"]) == 0 or _gpus_of_node(job.options):
        return
    number = int(gpus["number"])
    for launch in job.launchers:
        step = slurm_options(launch.started.step or "")
        ranks = _RANKS.search(launch.started.arguments)
        nodes = (number_in(step.get("nodes")) or job.nodes) if launch.started.step is not None else 1
        if ranks is None or "gpus" in step or _gpus_of_node(step) or int(ranks[1]) * nodes <= number:
            continue
        of_all = int(ranks[1]) * nodes
        yield Mistake(
            _line_of_ranks(launch),
            f"{of_all} ranks in all ({nodes} × {ranks[1]}) for {number} requested GPU{'s'[: number > 1]}",
            f"--gpus-per-node={ranks[1]} instead of --gpus={number}, which is for all nodes together",
        )


@dataclass(frozen=True, slots=True)
class _Gpus:
    """GPUs of a node, and the option that asks for them up to its number."""

    number: int
    option: str


def _gpus_of_node(options: dict[str, str]) -> _Gpus | None:
    """None where no number is asked for, or none at all: then the ranks need none."""
    for name, text in (("gpus-per-node", options.get("gpus-per-node")), ("gres", options.get("gres"))):
        match = (_GPUS if name == "gpus-per-node" else _GPU_GRES).fullmatch(text or "")
        if match and int(match["number"] or 1) > 0:
            kind = match["kind"]
            before = kind if match["number"] or not kind else f"{kind}:"
            return _Gpus(int(match["number"] or 1), f"--{name}={before}")
    return None


def _line_of_ranks(launch: LaunchCommand) -> int:
    """Of the number where the command has it, else (in a variable) of the command."""
    match = _RANKS.search(launch.command.text)
    return launch.line.number_at(launch.command.offset + match.start()) if match else launch.number


def no_cores(job: LintedJob) -> Iterator[Mistake]:
    steps = [slurm_options(launch.started.step or "") for launch in job.launches]
    asked = {"cpus-per-task", "cpus-per-gpu"}
    if any(not asked.isdisjoint(options) for options in [job.options, *steps]) or _has_cores_without_asking(
        job
    ):
        return
    yield Mistake(
        max((directive.number for directive in job.script.directives), default=1),
        "no --cpus-per-task: a task gets one core for all its ranks and their data loaders",
        "#SBATCH --cpus-per-task=N, and the same for srun, which does not inherit it since SLURM 22.05",
    )


def _has_cores_without_asking(job: LintedJob) -> bool:
    """Whole nodes; or the cores of several tasks for what the script starts itself, without srun."""
    uses_srun = any(launch.started.step is not None for launch in job.launches)
    return job.has_whole_nodes or (not uses_srun and (tasks_of({}, job).per_node or 1) > 1)


def no_thread_count(job: LintedJob) -> Iterator[Mistake]:
    ranks = job.ranks
    texts = [line.text for line in all_lines(job)] + list(job.script.documents)
    if ranks and not any(re.search(r"OMP_NUM_THREADS=|--num[-_]cpu[-_]threads", text) for text in texts):
        cores = (
            "$SLURM_CPUS_PER_GPU"
            if "cpus-per-gpu" in job.options
            else "$SLURM_CPUS_PER_TASK, divided by the ranks per task"
        )
        yield Mistake(
            ranks[0].number,
            "OMP_NUM_THREADS is not set: torchrun sets it to 1; without torchrun every rank uses all cores",
            f"export OMP_NUM_THREADS={cores}",
        )
