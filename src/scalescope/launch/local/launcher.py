"""Local launcher: ranks as supervised child processes on this machine, without a listening port."""

import dataclasses
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scalescope.catalog.benchmarks.memory import EXACT_ALLOCATION
from scalescope.catalog.link import rates_of
from scalescope.catalog.measuring import Measuring
from scalescope.cores import usable_cores
from scalescope.errors import CannotRun
from scalescope.experiment.command_line import filled_words
from scalescope.experiment.explanations import Phase
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.host_memory import usable_memory
from scalescope.inspection import inspect_system
from scalescope.launch.launcher import Outcome, Watcher, attach_phase, explained_in
from scalescope.launch.local.command.launch import CommandLaunch
from scalescope.launch.local.command.views import Views
from scalescope.launch.local.emulation import ShapedNetwork, SplitGpu, check_possible
from scalescope.launch.local.logs import (
    MemoryUse,
    explained_by_calls,
    leftover_notes,
    outlook,
    without_perf_maps,
)
from scalescope.launch.local.processes import (
    START_LIMIT_S,
    FreshSpawner,
    Spawner,
    SpawnFailed,
    Zygote,
    can_fork,
    check_limits,
    cpus_for,
)
from scalescope.launch.local.rank_watch import SupervisedLaunch, SupervisedRank
from scalescope.launch.local.supervisor import Supervisor
from scalescope.launch.private_directory import private_directory
from scalescope.launch.probing import LOOPBACK, machine_from_probe, probe_in_new_process
from scalescope.launch.telemetry.load import LoadMeter, load_at_start
from scalescope.launch.telemetry.sampler import Telemetry, gpus_of
from scalescope.launch.topology import host_topology
from scalescope.launch.validity import judge
from scalescope.results.other_load import OtherLoad
from scalescope.results.ranks import RANK_VARIABLE, ROOM_VARIABLE, Heartbeats, RankJob
from scalescope.results.run_folder import RunFolder
from scalescope.secret_variables import with_values

# The supervisor's limits decide: the group's own would run out in the ranks that wait, and blame them.
_GROUP_TIMEOUT_S = 24 * 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class TimeLimits:
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
        self.init_timeout_s = START_LIMIT_S  # for loading torch, too
        self._threads = usable_cores()  # that libraries are loaded for where trials do not say
        self._zygotes: dict[int, Zygote] = {}  # by threads; they load torch, so they start when needed
        self._machine: Machine | None = None
        self._networks: dict[tuple[str, int], ShapedNetwork] = {}
        self._splits: dict[int, SplitGpu] = {}
        self._views = Views()

    def outlook(self, devices: Sequence[str]) -> Machine | None:
        return outlook(devices)

    def expect(self, trials: Iterable[Trial]) -> None:
        """Say what will be launched, before torch is loaded: it is loaded for their number of threads."""
        threads = Counter(trial.threads_per_rank for trial in trials if not trial.on_gpu)
        if threads and not self._zygotes:
            self._threads = threads.most_common(1)[0][0]

    def machine(self) -> Machine:
        if self._machine is None:
            check_limits(1, 1)
            try:
                zygote = self._started_zygote(self._threads)
                raw = zygote.probe() if zygote else probe_in_new_process(limit_s=self.init_timeout_s)
            except OSError as error:  # a control group may limit processes without showing it
                reason = error.strerror
                raise CannotRun(f"the process that starts ranks cannot be started: {reason}") from None
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
        """A shaped link needs rights and tools, a command values for its placeholders, variables theirs."""
        with_values(trial.env)
        if trial.link is not None:
            check_possible()
        if trial.is_command:
            self._check_writes(trial, filled_words(trial))
        else:
            check_limits(trial.world_size, trial.threads_per_rank)

    def _check_writes(self, trial: Trial, words: Sequence[str], *, several_nodes: bool = False) -> None:
        """Refuse a command whose writes cannot be kept apart here, unless it may write."""
        if trial.has_private_view:
            keep = trial.settings.get("output_to")
            self._views.check(words, Path(keep) if keep else None, several_nodes=several_nodes)

    def launch(
        self,
        trial: Trial,
        launch: int,
        folder: RunFolder,
        limits: Measuring,
        watcher: Watcher,
        *,
        deadline: float | None = None,
        phases: Sequence[Phase] = (),
    ) -> Outcome:
        self.init_timeout_s = limits.init_timeout
        with private_directory(folder.path) as directory:
            try:
                times = TimeLimits(limits, deadline)
                if trial.is_command:
                    command = self._command_launch(directory, trial, launch, folder, times, phases)
                    outcome = self._run_command(command, watcher)
                else:
                    outcome = self._launch_in(directory, trial, launch, folder, times, watcher, phases)
            except SpawnFailed as error:
                self._end_zygotes()  # one that died or cannot fork costs a launch, not the sweep
                return Outcome(status=error.status, reason=str(error))
        if outcome.status != "ok":
            return outcome
        judged = judge(trial, outcome.records)
        return dataclasses.replace(
            judged,
            notes=outcome.notes,
            telemetry=outcome.telemetry,
            signum=outcome.signum,
            explained=tuple(
                explained
                for explained in outcome.explained
                if judge(explained.trial, explained.records).status == "ok"
            ),
        )

    def _zygote_for(self, trial: Trial) -> Zygote | None:
        """A zygote whose libraries were loaded for as many threads as the trial's ranks use."""
        return self._started_zygote(self._threads if trial.on_gpu else trial.threads_per_rank)

    def _started_zygote(self, threads: int) -> Zygote | None:
        """A process that forks ranks, another where it ended or is stopped; None where it cannot be used."""
        if not self._forks:
            return None
        if threads in self._zygotes and not self._zygotes[threads].is_usable:
            self._zygotes.pop(threads).close()
        if threads not in self._zygotes:
            self._zygotes[threads] = Zygote(threads, self.init_timeout_s)
        zygote = self._zygotes[threads]
        zygote.limit_s = self.init_timeout_s
        return zygote

    def _end_zygotes(self) -> None:
        for zygote in self._zygotes.values():
            zygote.close()
        self._zygotes.clear()

    def _launch_in(
        self,
        directory: Path,
        trial: Trial,
        launch: int,
        folder: RunFolder,
        limits: TimeLimits,
        watcher: Watcher,
        phases: Sequence[Phase],
    ) -> Outcome:
        world = trial.world_size
        attached = [attach_phase(folder, phase, launch) for phase in phases]
        beats = Heartbeats(directory / "beats", world, create=True)
        zygote = None if trial.env or _limits_process(trial) else self._zygote_for(trial)
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
            memory=MemoryUse(trial.memory_limit if _limits_process(trial) else None),
        )
        supervisor = Supervisor(supervised, watcher, spawner.wait, sample)
        try:
            for rank in range(world):
                rank_file = folder.rank_file(trial.trial_id, launch, rank).absolute()
                log = folder.log_file(trial.trial_id, launch, rank).absolute()
                for stale in (rank_file, log, *(Path(phase.rank_files[rank]) for phase in attached)):
                    stale.unlink(missing_ok=True)
                job = self._job(trial, launch, rank, directory, rank_file, folder)
                job = dataclasses.replace(job, phases=attached)
                environment = self._environment(trial, rank) | room_for(trial, limits.of_stages)
                process = spawner.start(job, environment, log)
                ranks.append(SupervisedRank(process=process, rank_file=rank_file, log=log))
            outcome = explained_by_calls(supervisor.run(), directory, world)
            ended = spawner.end_leftovers([rank.process.pid for rank in ranks])
            outcome.notes.extend(leftover_notes(ended))
            sampled = telemetry.of_window(outcome.records) if self.telemetry else {}
            of_window = telemetry.of_window if self.telemetry else lambda records: {}
            explained = explained_in(folder, phases, launch, of_window)
            return dataclasses.replace(outcome, telemetry=sampled, explained=explained)
        except BaseException:
            supervisor.end_all()
            spawner.end_leftovers(())
            raise
        finally:
            telemetry.close()

    def _run_command(self, command: CommandLaunch, watcher: Watcher) -> Outcome:
        return command.run(watcher)

    def _command_launch(
        self,
        directory: Path,
        trial: Trial,
        launch: int,
        folder: RunFolder,
        limits: TimeLimits,
        phases: Sequence[Phase],
    ) -> CommandLaunch:
        return CommandLaunch(
            trial=trial,
            number=launch,
            phases=phases,
            directory=directory,
            beats=directory / "beats",
            folder=folder,
            limits=limits.of_stages,
            deadline=limits.deadline,
            split=self._split_of(trial),
            gpus=self.machine().gpus if trial.on_gpu else (),
            sampled_gpus=gpus_of(trial, self.machine()) if self.telemetry and trial.on_gpu else (),
            meter=self._meter if self.telemetry else None,
            views=self._views,
        )

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
            **without_perf_maps(os.environ),
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
        return environment | with_values(trial.env)

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
        self._end_zygotes()


def room_for(trial: Trial, limits: Measuring) -> dict[str, str]:
    """The variable that bounds the model of a rank: its share of all memory, unless it may run out."""
    memory = usable_memory()
    if memory is None or limits.allow_oom or trial.memory_limit is not None:
        return {}
    return {ROOM_VARIABLE: str(memory // trial.world_size)}


def _limits_process(trial: Trial) -> bool:
    """Whether the system limits the memory of each process, which needs an allocator that reserves none."""
    return trial.memory_limit is not None and not trial.on_gpu
