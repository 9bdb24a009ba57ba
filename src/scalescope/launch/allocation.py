"""Training commands that start ranks on several nodes of a job."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.command_line import CommandNodes, filled_words
from scalescope.experiment.machine import Machine, combined_machine
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome, Watcher
from scalescope.launch.local.command.launch import CommandLaunch
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.launch.private_directory import private_directory_in
from scalescope.launch.probing import machine_from_probe, probe_in_new_process
from scalescope.launch.slurm import queue
from scalescope.launch.slurm.host_list import counts_of, hosts_of
from scalescope.launch.telemetry.load import load_at_start
from scalescope.launch.telemetry.sampler import gpus_of
from scalescope.results.other_load import OtherLoad

# ---- Allocation: the nodes of the SLURM job that this process is in, and the steps that are started there


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


# ---- Allocation launcher: training commands that start their ranks on the nodes of a SLURM job, by srun


_PROBES_AT_ONCE = 16


class AllocationLauncher(LocalLauncher):
    """Starts commands on the first node of a job; what they start on others is seen in the run folder."""

    def __init__(self, allocation: Allocation, *, telemetry: bool = True) -> None:
        super().__init__(fork=False, telemetry=telemetry)
        self._allocation = allocation
        self._probed: dict[str, Machine] = {}

    def outlook(self, devices: Sequence[str]) -> Machine | None:
        return None  # the other nodes are asked

    def machine(self) -> Machine:
        nodes = self.nodes()
        return combined_machine(nodes, dict.fromkeys(nodes, self._ranks_per_node()))

    def nodes(self) -> dict[str, Machine]:
        if not self._probed:
            with ThreadPoolExecutor(_PROBES_AT_ONCE) as pool:
                machines = list(pool.map(self._probe, self._allocation.nodes))
            self._probed = {machine.host: machine for machine in machines}
        return self._probed

    def _probe(self, node: str) -> Machine:
        """What one node can do; its cores are those that the job was granted."""
        here = node == self._allocation.nodes[0]
        machine = machine_from_probe(probe_in_new_process(*(() if here else _step_on(node))))
        granted = self._allocation.cores_per_node.get(node, machine.cores)
        # A step of one task may be bound to fewer cores than the job has on its node.
        cores = min(machine.cores, granted) if here else granted
        return dataclasses.replace(machine, host=node, cores=cores)

    def _here(self) -> Machine:
        return self.nodes()[self._allocation.nodes[0]]

    def _ranks_per_node(self) -> int:
        """One for each GPU; without GPUs as many as the job has tasks."""
        return min(len(node.gpus) for node in self.nodes().values()) or self._allocation.tasks_per_node

    def command_nodes(self) -> CommandNodes:
        """What the placeholders of a command stand for here."""
        return CommandNodes(names=self._allocation.nodes, ranks_per_node=self._ranks_per_node())

    def other_load(self) -> OtherLoad:
        """Of this node alone."""
        if not self.telemetry:
            return OtherLoad()
        return load_at_start(self._meter, self._began, [gpu.uuid for gpu in self._here().gpus])

    def check(self, trial: Trial) -> None:
        """Ranks that srun starts have the cores, GPUs and links that SLURM gives them."""
        if not trial.is_command:
            raise BadInput("in a job of several nodes, start scalescope by srun to measure without a command")
        if trial.link or trial.split_gpu or trial.oversubscribe:
            raise BadInput("--link, --split-gpu and --oversubscribe cannot be used in a job of several nodes")
        if trial.pin_cores == "yes":
            raise BadInput("--pin-cores: srun binds ranks in a job of several nodes; use its --cpu-bind")
        nodes = self.command_nodes()
        nodes.check(trial.command, trial.world_size)
        self._check_writes(trial, filled_words(trial, nodes=nodes), several_nodes=True)

    def _run_command(self, command: CommandLaunch, watcher: Watcher) -> Outcome:
        trial, nodes = command.trial, self.command_nodes()
        ranks_here = min(trial.world_size, nodes.ranks_per_node or trial.world_size)
        sampled = gpus_of(trial, self._here(), ranks=ranks_here) if trial.on_gpu and self.telemetry else ()
        with (
            private_directory_in(command.folder.path.absolute()) as shared,
            self._allocation.without_new_steps(),
        ):
            return dataclasses.replace(
                command, directory=shared, nodes=nodes, gpus=(), sampled_gpus=sampled
            ).run(watcher)


def _step_on(node: str) -> tuple[str, ...]:
    """Runs a program on another node of the job."""
    return ("srun", "--nodes=1", "--ntasks=1", f"--nodelist={node}")
