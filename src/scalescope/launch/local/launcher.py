"""Local launcher: ranks as supervised child processes on this machine, without a listening port."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalescope.catalog.benchmarks.memory import EXACT_ALLOCATION
from scalescope.catalog.link import rates_of
from scalescope.catalog.measuring import Measuring
from scalescope.experiment.command_line import filled_words
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.host_memory import usable_memory
from scalescope.inspection import inspect_system
from scalescope.launch.launcher import Outcome, Watcher, judge
from scalescope.launch.local.command.launch import CommandLaunch
from scalescope.launch.local.network import ShapedNetwork, check_possible
from scalescope.launch.local.outlook import outlook
from scalescope.launch.local.pinning import cpus_for
from scalescope.launch.local.processes import FreshSpawner, Spawner, SpawnFailed, Zygote, can_fork
from scalescope.launch.local.rank_watch import SupervisedLaunch, SupervisedRank
from scalescope.launch.local.split_gpu import SplitGpu
from scalescope.launch.local.supervisor import Supervisor
from scalescope.launch.loopback import LOOPBACK
from scalescope.launch.private_directory import private_directory
from scalescope.launch.probing import machine_from_probe, probe_in_new_process
from scalescope.launch.telemetry.load import LoadMeter, load_at_start
from scalescope.launch.telemetry.sampler import Telemetry, gpus_of
from scalescope.launch.topology import host_topology
from scalescope.results.other_load import OtherLoad
from scalescope.results.ranks.heartbeat import Heartbeats
from scalescope.results.ranks.rank_job import RANK_VARIABLE, ROOM_VARIABLE, RankJob
from scalescope.results.run_folder import RunFolder

# The supervisor's limits decide: the group's own would run out in the ranks that wait, and blame them.
_GROUP_TIMEOUT_S = 24 * 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class _TimeLimits:
    """How long each stage of a launch may take, and when all of it must end."""

    of_stages: Measuring
    deadline: float | None


class LocalLauncher:
    """Forks ranks from a zygote where the system allows it, and starts fresh processes elsewhere."""

    repeatable = True
    ranks: int | None = None

    def __init__(self, *, fork: bool | None = None, telemetry: bool = True) -> None:
        self.telemetry = telemetry
        self._meter = LoadMeter()
        self._began = self._meter.read(time.monotonic())
        self._forks = can_fork() if fork is None else fork
        self._zygote: Zygote | None = None  # it loads torch, so it is started when it is needed
        self._machine: Machine | None = None
        self._networks: dict[tuple[str, int], ShapedNetwork] = {}
        self._splits: dict[int, SplitGpu] = {}

    def outlook(self, devices: Sequence[str]) -> Machine | None:
        return outlook(devices)

    def machine(self) -> Machine:
        if self._machine is None:
            zygote = self._started_zygote()
            raw = zygote.probe() if zygote else probe_in_new_process()
            self._machine = machine_from_probe(raw)
        return self._machine

    def nodes(self) -> dict[str, Machine]:
        return {self.machine().host: self.machine()}

    def systems(self) -> dict[str, dict[str, Any]]:
        system = inspect_system()
        return {self.machine().host: {**system, "topology": host_topology(system["link_matrix"]).to_json()}}

    def other_load(self) -> OtherLoad:
        if not self.telemetry:
            return OtherLoad()
        return load_at_start(self._meter, self._began, [gpu.uuid for gpu in self.machine().gpus])

    def check(self, trial: Trial) -> None:
        """A shaped link needs rights and tools, a command values for its placeholders."""
        if trial.link is not None:
            check_possible()
        if trial.is_command:
            filled_words(trial)

    def launch(
        self,
        trial: Trial,
        launch: int,
        folder: RunFolder,
        limits: Measuring,
        watcher: Watcher,
        *,
        deadline: float | None = None,
    ) -> Outcome:
        with private_directory(folder.path) as directory:
            try:
                run = self._run_command if trial.is_command else self._launch_in
                outcome = run(directory, trial, launch, folder, _TimeLimits(limits, deadline), watcher)
            except SpawnFailed as error:
                self._replace_zygote()
                return Outcome(status="failed", reason=str(error))
        if outcome.status != "ok":
            return outcome
        judged = judge(trial, outcome.records)
        return dataclasses.replace(judged, notes=outcome.notes, telemetry=outcome.telemetry)

    def _started_zygote(self) -> Zygote | None:
        """The process that forks ranks; None where fresh ones are started."""
        if self._zygote is None and self._forks:
            self._zygote = Zygote()
        return self._zygote

    def _replace_zygote(self) -> None:
        """One that died or cannot fork costs a launch, not the sweep."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = Zygote()

    def _launch_in(
        self,
        directory: Path,
        trial: Trial,
        launch: int,
        folder: RunFolder,
        limits: "_TimeLimits",
        watcher: Watcher,
    ) -> Outcome:
        world = trial.world_size
        beats = Heartbeats(directory / "beats", world, create=True)
        zygote = None if trial.env or _limits_process(trial) else self._started_zygote()
        spawner: Spawner = FreshSpawner(directory) if zygote is None else zygote
        ranks: list[SupervisedRank] = []
        gpus = gpus_of(trial, self.machine()) if self.telemetry else []
        telemetry = Telemetry(
            gpus,
            lambda: [rank.process.pid for rank in ranks],
            meter=self._meter,
            shows_processes=trial.split_gpu is None,
        )
        sample = telemetry.sample if self.telemetry else lambda: None
        supervised = SupervisedLaunch(
            ranks=ranks,
            beats=beats,
            limits=limits.of_stages,
            steps=trial.steps,
            deadline=limits.deadline,
            memory_is_limited=_limits_process(trial),
        )
        supervisor = Supervisor(supervised, watcher, spawner.wait, sample)
        try:
            for rank in range(world):
                rank_file = folder.rank_file(trial.trial_id, launch, rank).absolute()
                log = folder.log_file(trial.trial_id, launch, rank).absolute()
                for stale in (rank_file, log):
                    stale.unlink(missing_ok=True)
                job = self._job(trial, launch, rank, directory, rank_file, folder)
                environment = self._environment(trial, rank) | room_for(trial, limits.of_stages)
                process = spawner.start(job, environment, log)
                ranks.append(SupervisedRank(process=process, rank_file=rank_file, log=log))
            outcome = supervisor.run()
            sampled = telemetry.of_window(outcome.records) if self.telemetry else {}
            return dataclasses.replace(outcome, telemetry=sampled)
        except BaseException:
            supervisor.end_all()
            raise
        finally:
            telemetry.close()

    def _run_command(
        self,
        directory: Path,
        trial: Trial,
        launch: int,
        folder: RunFolder,
        limits: "_TimeLimits",
        watcher: Watcher,
    ) -> Outcome:
        return CommandLaunch(
            trial=trial,
            number=launch,
            directory=directory,
            folder=folder,
            limits=limits.of_stages,
            deadline=limits.deadline,
            split=self._split_of(trial),
            gpus=self.machine().gpus if trial.on_gpu else (),
            sampled_gpus=gpus_of(trial, self.machine()) if self.telemetry and trial.on_gpu else (),
            meter=self._meter if self.telemetry else None,
        ).run(watcher)

    def _job(
        self,
        trial: Trial,
        launch: int,
        rank: int,
        directory: Path,
        rank_file: Path,
        folder: RunFolder,
    ) -> RankJob:
        network = self._network_of(trial)
        return RankJob(
            settings=dict(trial.settings),
            launch=launch,
            rank=rank,
            local_rank=rank,
            world_size=trial.world_size,
            parent=0,
            store_file=str(directory / "store"),
            heartbeat_file=str(directory / "beats"),
            rank_file=str(rank_file),
            folder=str(folder.path.absolute()),
            cpus=cpus_for(trial, rank, self.machine().gpus if trial.on_gpu else ()),
            namespace=network.namespace_of(rank) if network else "",
            group_timeout_s=_GROUP_TIMEOUT_S,
        )

    def _environment(self, trial: Trial, rank: int) -> dict[str, str]:
        variables: dict[str, Any] = {
            "RANK": rank,
            RANK_VARIABLE: rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": trial.world_size,
            "LOCAL_WORLD_SIZE": trial.world_size,
            "OMP_NUM_THREADS": trial.threads_per_rank,
            "KINETO_LOG_LEVEL": 99,
            **LOOPBACK,
        }
        if trial.oversubscribe:
            # NCCL refuses two ranks of one host on one GPU; given different host ids, it uses sockets.
            variables |= {"NCCL_HOSTID": f"scalescope-{rank}", "NCCL_IB_DISABLE": 1}
        if _limits_process(trial):
            variables |= EXACT_ALLOCATION
        environment = {name: str(value) for name, value in variables.items()}
        if network := self._network_of(trial):
            environment |= network.environment_of(rank)
        if split := self._split_of(trial):
            environment |= split.environment_of(rank)
        return environment | trial.env

    def _network_of(self, trial: Trial) -> ShapedNetwork | None:
        """The network of a trial's link, built once and kept for the trials to come."""
        link, world = trial.link, trial.world_size
        if link is None:
            return None
        if (link, world) not in self._networks:
            self._networks[link, world] = ShapedNetwork(rates_of(link, world))
        return self._networks[link, world]

    def _split_of(self, trial: Trial) -> SplitGpu | None:
        parts = trial.split_gpu
        if parts is None:
            return None
        if parts not in self._splits:
            self._splits[parts] = SplitGpu(parts)
        return self._splits[parts]

    def close(self) -> None:
        for network in self._networks.values():
            network.close()
        for split in self._splits.values():
            split.close()
        self._networks.clear()
        self._splits.clear()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None


def room_for(trial: Trial, limits: Measuring) -> dict[str, str]:
    """The variable that bounds the model of a rank: its share of all memory, unless it may run out."""
    memory = usable_memory()
    if memory is None or limits.allow_oom or trial.memory_limit is not None:
        return {}
    return {ROOM_VARIABLE: str(memory // trial.world_size)}


def _limits_process(trial: Trial) -> bool:
    """Whether the system limits the memory of each process, which needs an allocator that reserves none."""
    return trial.memory_limit is not None and not trial.on_gpu
