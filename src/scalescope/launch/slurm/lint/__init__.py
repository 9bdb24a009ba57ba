"""Finds mistakes that people copy from job script to job script: each with its line and its fix."""

from collections.abc import Callable, Iterator
from pathlib import Path

from scalescope.launch.slurm.lint import environment, resources, starting
from scalescope.launch.slurm.lint.facts import LintedJob, Mistake, job_of, read

_RULES: tuple[Callable[[LintedJob], Iterator[Mistake]], ...] = (
    environment.indented_directive,
    environment.late_directive,
    environment.commented_directive,
    starting.node_list_as_address,
    starting.rendezvous_at_this_host,
    starting.rendezvous_at_each_node,
    starting.fixed_port,
    starting.shared_default_port,
    starting.rank_of_the_first_node,
    starting.torchrun_on_first_node_only,
    starting.torchrun_without_rendezvous,
    starting.nodes_of_another_number,
    resources.several_launchers,
    resources.pmix,
    resources.gpus_per_task,
    resources.more_ranks_than_gpus,
    resources.more_ranks_than_gpus_of_the_job,
    resources.no_cores,
    resources.no_thread_count,
    environment.loopback_between_nodes,
    environment.left_from_debugging,
    environment.missing_folder,
)


def lint(script: str, folders: tuple[Path, ...] = ()) -> list[Mistake]:
    """All mistakes of a script, in the order of its lines; relative paths start in one of the folders."""
    job = job_of(read(script.removeprefix("\ufeff").replace("\r\n", "\n")), folders)
    mistakes = [*environment.refused(script), *(mistake for rule in _RULES for mistake in rule(job))]
    return sorted(dict.fromkeys(mistakes), key=lambda mistake: mistake.line)
