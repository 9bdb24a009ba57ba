"""Finds mistakes that people copy from job script to job script: each with its line and its mend."""

from collections.abc import Callable, Iterator

from scalescope.launch.slurm_lint import meeting, reading, resources, this_host
from scalescope.launch.slurm_lint.facts import Job, Mistake, job_of
from scalescope.launch.slurm_lint.script import read

_RULES: tuple[Callable[[Job], Iterator[Mistake]], ...] = (
    reading.indented_directive,
    reading.late_directive,
    reading.commented_directive,
    meeting.node_list_as_address,
    this_host.meeting_at_this_host,
    meeting.fixed_port,
    meeting.shared_default_port,
    meeting.rank_of_the_first_node,
    meeting.one_node_of_several,
    resources.several_launchers,
    resources.pmix,
    resources.gpus_per_task,
    resources.more_ranks_than_gpus,
    resources.no_cores,
    resources.no_thread_count,
)


def lint(script: str) -> list[Mistake]:
    """All mistakes of a script, in the order of its lines."""
    job = job_of(read(script.removeprefix("\ufeff").replace("\r\n", "\n")))
    found = [*reading.refused(script), *(mistake for rule in _RULES for mistake in rule(job))]
    return sorted(dict.fromkeys(found), key=lambda one: one.line)
