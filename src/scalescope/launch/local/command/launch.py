"""One launch of a training command: its files are written, it is started, watched and ended."""

import contextlib
import dataclasses
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalescope.catalog.measuring import Measuring
from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.command_line import CommandNodes, filled_words
from scalescope.experiment.explanations import Phase
from scalescope.experiment.machine import Gpu
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome, Watcher, attach_phase, explained_in
from scalescope.launch.local.command.environment import command_environment, rank_cpus, rank_environments
from scalescope.launch.local.command.evidence import HostHeartbeats, SlurmLoadMeter
from scalescope.launch.local.command.processes import PACKAGE, CommandProcess, check_program, start_command
from scalescope.launch.local.command.supervisor import CommandSupervisor, RankOfCommand, SupervisedCommand
from scalescope.launch.local.command.views import Views, Writes
from scalescope.launch.local.emulation import SplitGpu
from scalescope.launch.local.rank_watch import SupervisedLaunch, SupervisedRank
from scalescope.launch.telemetry.load import LoadMeter
from scalescope.launch.telemetry.sampler import Telemetry
from scalescope.results.ranks import PROCESSES, AttachJob, Heartbeats
from scalescope.results.result import RankRecord
from scalescope.results.run_folder import RunFolder

_HOOK = Path(__file__).with_name("startup_hook.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLaunch:
    """What one launch is made of: what to run, where its files lie, and its part of the machine."""

    trial: Trial
    number: int
    directory: Path  # private to this launch
    beats: Path  # the file of the heartbeats, in the memory of this host
    folder: RunFolder
    limits: Measuring
    deadline: float | None = None  # on the monotonic clock
    phases: Sequence[Phase] = ()  # what is measured after the window
    nodes: CommandNodes = field(default_factory=CommandNodes)
    split: SplitGpu | None = None
    gpus: Sequence[Gpu] = ()
    sampled_gpus: Sequence[str] = ()  # ids
    meter: LoadMeter | None = None  # None: nothing is sampled
    views: Views = field(default_factory=Views)

    def run(self, watcher: Watcher) -> Outcome:
        """Start the command and watch it to its end."""
        kind = HostHeartbeats if self.nodes.are_several else Heartbeats
        beats = kind(self.beats, self.trial.world_size, create=True)
        of_phases = (file for phase in self.phases for file in self._files_of(phase.trial))
        for stale in (*self.rank_files, *of_phases, self.log):
            stale.unlink(missing_ok=True)
        with contextlib.ExitStack() as stack:
            try:
                writes = stack.enter_context(self._writes()) if self.trial.has_private_view else None
                process = self._start(writes)
            except (BadInput, CannotRun) as error:
                return Outcome(status="failed", reason=str(error), bad_input=True)
            return self._watch(process, beats, writes, watcher)

    def _watch(
        self, process: CommandProcess, beats: Heartbeats, writes: Writes | None, watcher: Watcher
    ) -> Outcome:
        ranks = [RankOfCommand(process) for _ in self.rank_files]
        supervised = SupervisedLaunch(
            ranks=[
                SupervisedRank(process=rank, rank_file=file, log=self.log)
                for rank, file in zip(ranks, self.rank_files, strict=True)
            ],
            beats=beats,
            limits=self.limits,
            steps=self.trial.steps,
            deadline=self.deadline,
        )
        if isinstance(beats, HostHeartbeats):
            beats.records = [rank.record for rank in supervised.ranks]
        command = SupervisedCommand(
            trial=self.trial,
            process=process,
            ranks=ranks,
            launch=supervised,
            directory=self.directory,
            log=self.log,
            on_one_host=not self.nodes.are_several,
            writes=writes,
        )
        try:
            return self._supervise(command, watcher)
        except BaseException:
            if not self.trial.keeps_running:
                process.end()
            raise

    def _supervise(self, command: SupervisedCommand, watcher: Watcher) -> Outcome:
        if self.meter is None:
            outcome = CommandSupervisor(command, watcher).run()
            return dataclasses.replace(outcome, explained=explained_in(self.folder, self.phases, self.number))
        telemetry = Telemetry(
            self.sampled_gpus,
            lambda: _known_pids(command.ranks),
            meter=SlurmLoadMeter(command.process) if "SLURM_JOB_ID" in os.environ else self.meter,
            shows_processes=self.split is None,
        )
        sampled: dict[str, Any] = {}

        def measured(records: Sequence[RankRecord]) -> None:
            sampled.update(telemetry.of_window(self._of_this_host(records)))

        try:
            outcome = CommandSupervisor(command, watcher, telemetry.sample, measured).run()
            explained = explained_in(
                self.folder,
                self.phases,
                self.number,
                lambda records: telemetry.of_window(self._of_this_host(records)),
            )
        finally:
            telemetry.close()
        return dataclasses.replace(outcome, telemetry=sampled, explained=explained)

    def _of_this_host(self, records: Sequence[RankRecord]) -> list[RankRecord]:
        """Those whose clock is ours."""
        here = (socket.gethostname(), self.nodes.names[0])
        return [record for record in records if record.host in here or not self.nodes.are_several]

    @property
    def rank_files(self) -> list[Path]:
        return self._files_of(self.trial)

    def _files_of(self, trial: Trial) -> list[Path]:
        ranks = range(trial.world_size)
        return [self.folder.rank_file(trial.trial_id, self.number, rank).absolute() for rank in ranks]

    @property
    def log(self) -> Path:
        """Of the command and all its ranks."""
        return self.folder.log_file(self.trial.trial_id, self.number, 0).absolute()

    def _writes(self) -> contextlib.AbstractContextManager[Writes]:
        keep = self.trial.settings.get("output_to")
        return self.views.launch(
            filled_words(self.trial, nodes=self.nodes),
            self.directory,
            passes=[self.folder.path],
            keep=Path(keep, f"{self.trial.trial_id}-{self.number}") if keep else None,
            several_nodes=self.nodes.are_several,
        )

    def _start(self, writes: Writes | None) -> CommandProcess:
        environments = rank_environments(self.trial, self.split, self.gpus)
        job_file, hook = self.directory / "job.json", self.directory / "python"
        words = filled_words(self.trial, str(job_file), self.nodes)
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(_HOOK.read_text(encoding="utf-8"), encoding="utf-8")
        (self.directory / PROCESSES).mkdir()
        job_file.write_text(self._job(environments, writes).to_text(), encoding="utf-8")
        environment = command_environment(
            self.trial, os.environ, job_file, hook, environments, on_one_host=not self.nodes.are_several
        )
        check_program(words[0], environment)
        in_front = [] if writes is None else writes.words
        environment |= {} if writes is None else writes.environment
        return start_command(
            [*in_front, *words], environment, self.log, job_file, outlives_us=self.trial.keeps_running
        )

    def _job(self, environments: list[dict[str, str]], writes: Writes | None) -> AttachJob:
        return AttachJob(
            settings=dict(self.trial.settings),
            launch=self.number,
            world_size=self.trial.world_size,
            directory=str(self.directory),
            rank_files=[str(file) for file in self.rank_files],
            heartbeat_file=str(self.beats),
            folder=str(self.folder.path.absolute()),
            parent=0 if self.trial.keeps_running else os.getpid(),
            package_parent=str(PACKAGE.parent),
            environment=environments,
            cpus=[] if self.nodes.are_several else rank_cpus(self.trial, self.gpus),
            node=self.nodes.names[0] if self.nodes.are_several else "",
            phases=[attach_phase(self.folder, phase, self.number) for phase in self.phases],
            view=None if writes is None else dataclasses.asdict(writes.view),
            forbids_writing=writes is not None and writes.is_checked_by_ranks,
        )


def _known_pids(ranks: Sequence[RankOfCommand]) -> list[int]:
    """The ids of all ranks, once all are known: samples are kept by rank."""
    pids = [rank.pid for rank in ranks]
    return pids if all(pids) else []
