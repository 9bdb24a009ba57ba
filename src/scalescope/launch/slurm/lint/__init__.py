"""Finds mistakes that people copy from job script to job script: each with its line and its fix."""

from collections.abc import Callable, Iterator

from scalescope.launch.slurm.lint import reading, rendezvous, resources, this_host
from scalescope.launch.slurm.lint.facts import LintedJob, Mistake, job_of
from scalescope.launch.slurm.lint.script import read

_RULES: tuple[Callable[[LintedJob], Iterator[Mistake]], ...] = (
    reading.indented_directive,
    reading.late_directive,
    reading.commented_directive,
    rendezvous.node_list_as_address,
    this_host.rendezvous_at_this_host,
    rendezvous.fixed_port,
    rendezvous.shared_default_port,
    rendezvous.rank_of_the_first_node,
    rendezvous.one_node_of_several,
    rendezvous.nodes_of_another_number,
    resources.several_launchers,
    resources.pmix,
    resources.gpus_per_task,
    resources.more_ranks_than_gpus,
    resources.more_ranks_than_gpus_of_the_job,
    resources.no_cores,
    resources.no_thread_count,
)


def lint(script: str) -> list[Mistake]:
    """All mistakes of a script, in the order of its lines."""
    job = job_of(read(script.removeprefix("\ufeff").replace("\r\n", "\n")))
    mistakes = [*reading.refused(script), *(mistake for rule in _RULES for mistake in rule(job))]
    return sorted(dict.fromkeys(mistakes), key=lambda mistake: mistake.line)
