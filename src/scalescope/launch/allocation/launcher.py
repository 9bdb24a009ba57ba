"""Allocation launcher: training commands that start their ranks on the nodes of a SLURM job, by srun."""

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from scalescope.errors import BadInput
from scalescope.experiment.command_line import CommandNodes, filled_words
from scalescope.experiment.machine import Machine
from scalescope.experiment.machines.nodes import combined_machine
from scalescope.experiment.trial import Trial
from scalescope.launch.allocation.allocation import Allocation
from scalescope.launch.launcher import Outcome, Watcher
from scalescope.launch.local.command.launch import CommandLaunch
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.launch.private_directory import private_directory_in
from scalescope.launch.probing import machine_from_probe, probe_in_new_process
from scalescope.launch.telemetry.load import load_at_start
from scalescope.launch.telemetry.sampler import gpus_of
from scalescope.results.other_load import OtherLoad

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
