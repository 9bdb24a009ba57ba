"""Allocation: the nodes of the SLURM job that this process is in, and the steps that are started there."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scalescope.errors import CannotRun
from scalescope.launch.slurm import queue
from scalescope.launch.slurm.host_list import counts_of, hosts_of

_END_LIMIT_S = 60.0  # SLURM gives the processes of a step time to end
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A job of several nodes; this process is on the first of `nodes`."""

    job: str
    nodes: tuple[str, ...]
    tasks_per_node: int
    cores_per_node: Mapping[str, int]  # that SLURM granted; empty where it does not say

    @contextlib.contextmanager
    def without_new_steps(self) -> Iterator[None]:
        """End the steps that were started meanwhile: signals of ours reach only processes of this host."""
        before = self._steps()
        try:
            yield
        finally:
            self._end(self._steps() - before)

    def _steps(self) -> frozenset[str]:
        """The steps that run; none where SLURM does not answer, for then none can be ended either."""
        try:
            return queue.steps_of(self.job)
        except CannotRun:
            return frozenset()

    def _end(self, steps: frozenset[str]) -> None:
        for step in steps:
            with contextlib.suppress(CannotRun):
                queue.cancel(step)
        deadline = time.monotonic() + _END_LIMIT_S
        while steps and steps & self._steps() and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def current_allocation(environment: Mapping[str, str]) -> Allocation | None:
    """The job of several nodes that this process is in; None where there is none, or it has one node."""
    job, listed = environment.get("SLURM_JOB_ID"), environment.get("SLURM_JOB_NODELIST")
    names = hosts_of(listed) if job and listed else []
    if job is None or len(names) < 2:
        return None
    here = environment.get("SLURMD_NODENAME")
    if here not in names:
        raise CannotRun(
            f"job {job} has {len(names)} nodes, and this is not one of them; start scalescope in its script"
        )
    ordered = (here, *(name for name in names if name != here))
    tasks = environment.get("SLURM_TASKS_PER_NODE")
    cores = environment.get("SLURM_JOB_CPUS_PER_NODE")
    return Allocation(
        job=job,
        nodes=ordered,
        tasks_per_node=min(counts_of(tasks)) if tasks else 1,
        cores_per_node=dict(zip(names, counts_of(cores), strict=False)) if cores else {},
    )
