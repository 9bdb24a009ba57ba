"""torchrun on several nodes: how its nodes find each other and tell each other apart.

By default, with the static rendezvous, torchrun is node 0 unless --node_rank says otherwise; it reads neither
SLURM's variables nor MASTER_ADDR. srun starts the same words on every node, so they need a backend that
numbers the nodes itself (c10d), or a --node_rank that a shell on each node expands.
"""

import re
from collections.abc import Iterator

from scalescope.launch.slurm.lint.facts import LintedJob, Mistake
from scalescope.launch.slurm.lint.launches import LaunchCommand
from scalescope.launch.slurm.lint.nodes import (
    FIRST_NODE,
    PORT_OF_JOB,
    is_elsewhere_too,
    is_on_one_node,
    line_of_nodes,
    nodes_of_launch,
    runs_on_other_nodes,
)
from scalescope.launch.slurm.lint.script import commands, unquoted

_WITHOUT_VALUE = frozenset(
    {"standalone", "m", "module", "no_python", "run_path", "virtual_local_rank", "use_env"}
)
_MODULE = re.compile(r".*?-m\s+torch\.distributed\.\w+\s+", re.DOTALL)
_FLAG = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(?P<value>=.*)?", re.DOTALL)
_FLAGS_IN_VARIABLE = re.compile(r"[\"']?\$\S*(?:--|ARG|OPT|FLAG|PARAM|DIST|RDZV|LAUNCH)", re.IGNORECASE)
_BY_VARIABLES = re.compile(r"\bPET_(?:NNODES|NODE_RANK|RDZV_\w+|MASTER_ADDR|STANDALONE)=")


def torchrun_on_first_node_only(job: LintedJob) -> Iterator[Mistake]:
    for launch, options in _for_several_nodes(job):
        if not _is_on_first_node_only(launch, job):
            continue
        needed = " " + _meeting(launch, options) if _is_static(options) or "standalone" in options else ""
        cores = "--cpus-per-task=$SLURM_CPUS_PER_TASK " if "cpus-per-task" in job.options else ""
        yield Mistake(
            launch.number,
            "torchrun for several nodes without srun: a job script runs only on the first node",
            f"start it on all nodes: srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 {cores}torchrun{needed}",
        )


def torchrun_without_rendezvous(job: LintedJob) -> Iterator[Mistake]:
    for launch, options in _for_several_nodes(job):
        if _is_on_first_node_only(launch, job):  # whose fix says all that is needed
            continue
        if what := _why_nodes_do_not_meet(launch, options):
            yield Mistake(
                line_of_nodes(launch), f"torchrun for several nodes {what}", _meeting(launch, options)
            )


def numbers_nodes_itself(launch: LaunchCommand) -> bool:
    """Whether --node_rank has no effect, because the rendezvous backend numbers the nodes."""
    return not _is_static(_options(launch) or {})


def _why_nodes_do_not_meet(launch: LaunchCommand, options: dict[str, str]) -> str | None:
    rank = options.get("node_rank")
    if "standalone" in options:
        return "with --standalone, which is for one node: each waits alone for the others"
    if not _is_static(options):
        return (
            None if "rdzv_endpoint" in options else "without --rdzv_endpoint: each meets at its own localhost"
        )
    if rank is None:
        return "without --node_rank or a rendezvous backend: every node takes itself for node 0"
    if rank.isdigit() and launch.started.step is not None and not is_on_one_node(launch):
        return f"with --node_rank={rank}: every node takes itself for node {rank}"
    if not {"rdzv_endpoint", "master_addr"} & options.keys():
        return "without --master_addr: each meets at its own localhost"
    return None


def _meeting(launch: LaunchCommand, options: dict[str, str]) -> str:
    """Flags by which nodes meet that srun starts with the same words, as far as they are missing."""
    replaced = [
        f"--{name}" for name in ("standalone", "node_rank", "master_addr", "master_port") if name in options
    ]
    instead = f" instead of {' and '.join(replaced)}" if replaced else ""
    if "rdzv_endpoint" in options and "standalone" not in options:
        return "--rdzv_backend=c10d" + instead
    address = _written(launch, "master_addr") or FIRST_NODE
    port = _written(launch, "master_port") or PORT_OF_JOB
    return f"--rdzv_backend=c10d --rdzv_endpoint={address}:{port}{instead}"


def _written(launch: LaunchCommand, name: str) -> str | None:
    """The value of a flag as the command spells it, without the variables that stand for it."""
    flag = name.replace("_", "[-_]")
    match = re.search(rf"--{flag}(?:=|\s+)([\"']?)([^\s\"']+)\1", launch.command.text)
    return None if match is None or re.match(r"localhost|127\.|\[?::1", match[2]) else match[2]


def _for_several_nodes(job: LintedJob) -> Iterator[tuple[LaunchCommand, dict[str, str]]]:
    """Every torchrun that others have to join, with its flags."""
    if any(_BY_VARIABLES.search(line.text) for line in job.script.lines):
        return
    for launch in job.launchers:
        options = _options(launch) if launch.started.program == "torchrun" else None
        if options and _most_nodes(options, job) > 1 and nodes_of_launch(launch, job) != 1:
            yield launch, options


def _most_nodes(options: dict[str, str], job: LintedJob) -> int:
    """Of MIN:MAX the larger; a variable holds what the job has."""
    most = options.get("nnodes", "1").rpartition(":")[2]
    return int(most) if most.isdigit() else job.nodes


def _is_static(options: dict[str, str]) -> bool:
    return options.get("rdzv_backend", "static") == "static"


def _is_on_first_node_only(launch: LaunchCommand, job: LintedJob) -> bool:
    return job.nodes > 1 and not runs_on_other_nodes(launch) and not is_elsewhere_too(job)


def _options(launch: LaunchCommand) -> dict[str, str] | None:
    """torchrun's own flags, which end at its script; None where a variable may hold more of them."""
    arguments = _MODULE.sub("", launch.started.arguments, count=1)
    options: dict[str, str] = {}
    words = [word for command in list(commands(arguments))[-1:] for word in command.words]
    while words:
        word = words.pop(0)
        if word.startswith(("$", '"$', "'$")):
            is_script = not _FLAGS_IN_VARIABLE.match(word) and not any(map(_names_script, words))
            return options if is_script else None
        if not (match := _FLAG.fullmatch(unquoted(word))):
            break
        name = match["name"].replace("-", "_")
        takes_next = match["value"] is None and name not in _WITHOUT_VALUE and words
        options[name] = unquoted(words.pop(0)) if takes_next else (match["value"] or "")[1:]
    return options


def _names_script(word: str) -> bool:
    return word == "-m" or unquoted(word).endswith(".py")
