"""Prepared: a study with what was asked of it, parsed once, and the plan for the machine it runs on."""

import contextlib
import dataclasses
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from scalescope.errors import BadInput, CannotRun, ScalescopeError
from scalescope.experiment.command_line import COMMAND
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.machine import Machine, Precisions
from scalescope.launch.launcher import Launcher
from scalescope.results.run_folder import EXPERIMENT
from scalescope.results.run_record import round_duration
from scalescope.studies.plan import Plan
from scalescope.studies.refusal import refuse_impossible, refuse_unknown_secrets
from scalescope.studies.request import Request
from scalescope.studies.stored import check_of_ranks
from scalescope.studies.study import Host, Study

_THREADS = "OMP_NUM_THREADS"
_LEAST_BUDGET_S = 30.0  # to suggest, where nothing is known but that torch starts slowly


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What the verb, the API, a dry run, a job and a resumed run hand on to each other."""

    study: Study
    request: Request
    experiment: Experiment  # what was asked, checked
    host: Host | None = None  # that it is planned for; None before
    planned: Plan | None = None

    @property
    def output_dir(self) -> Path | None:
        """The folder that was named for the run."""
        given = self.experiment.measuring.output_dir
        return None if given is None else Path(given)

    @property
    def plan(self) -> Plan:
        """The plan, once there is one."""
        assert self.planned is not None
        return self.planned

    def on(self, host: Host) -> "Prepared":
        """Planned for a host; refuses what can never run there.

        What was planned before stays where the host differs in nothing that decides what is launched.
        """
        if self.planned is not None and self.host is not None and self._is_planned_for(self.host, host):
            plan = dataclasses.replace(self.planned, machine=host.machine)
        else:
            plan = self.study.plan(self.experiment, host, many=self.request.yes)
        refuse_impossible(plan)
        return dataclasses.replace(self, host=host, planned=plan)

    def with_plan(self, plan: Plan) -> "Prepared":
        return dataclasses.replace(self, planned=plan)

    def _is_planned_for(self, before: Host, now: Host) -> bool:
        alike = _deciding(before) == _deciding(now)
        return alike and (not self.study.plans_by_formats or _formats(before) == _formats(now))


def prepare(study: Study, request: Request) -> Prepared:
    """Parse and check what was asked; of --resume without a folder, find the run that it continues."""
    request = request.with_run_to_resume()
    experiment = _with_threads_of_shell(request.experiment(study.defaults))
    return Prepared(study=study, request=request, experiment=experiment)


def _with_threads_of_shell(experiment: Experiment) -> Experiment:
    """A command keeps the CPU threads that the user's shell gives it, unless others are asked for."""
    threads = os.environ.get(_THREADS, "")
    is_given = any(_THREADS in (env or {}) for env in experiment.settings.get("env", ()))
    if COMMAND not in experiment.settings or is_given or not re.fullmatch("[1-9][0-9]{0,2}", threads):
        return experiment
    return experiment.with_default(threads_per_rank=(int(threads),))


def planned_here(prepared: Prepared, launcher: Launcher) -> Prepared:
    """Planned for this machine: before torch is loaded as far as the system and stored files tell."""
    request, measuring = prepared.request, prepared.experiment.measuring
    if prepared.planned is None:
        devices = [str(device) for device in prepared.experiment.asked("device", "auto")]
        expected = launcher.outlook(devices)
        prepared = prepared if expected is None else prepared.on(Host(machine=expected))
    if prepared.planned is not None:
        if not request.dry_run:
            refuse_unknown_secrets(prepared.planned.all_trials)
        launcher.expect(prepared.planned.all_trials)
    with _budget_for_loading(measuring.budget, request.started_s):
        host = host_of(launcher, new_ranks=request.only_next)
    prepared = prepared.on(host)
    if request.is_shared:
        prepared = _shared(prepared)
    elif not launcher.repeatable:
        prepared = prepared.with_plan(_launched_once(prepared.plan))
    return prepared.with_plan(dataclasses.replace(prepared.plan, started_s=request.started_s))


@contextlib.contextmanager
def _budget_for_loading(budget_s: float | None, started_s: float | None) -> Iterator[None]:
    """A budget that starting torch spends ends that too."""
    if budget_s is None or started_s is None:
        yield
        return
    spent = CannotRun(
        f"the budget of {budget_s:g} s was spent while torch was loaded; nothing was measured; "
        f"try --budget {round_duration(max(_LEAST_BUDGET_S, 4.0 * budget_s))}"
    )
    with time_limit(budget_s - (time.monotonic() - started_s), spent):
        yield


@contextlib.contextmanager
def time_limit(seconds: float | None, error: ScalescopeError) -> Iterator[None]:
    """Raise `error` in the main thread if it is still inside after this time; None means no limit.

    Other threads get no alarm, so there only a limit that has passed already is one.
    """
    if seconds is not None and seconds <= 0.0:
        raise error
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, handle)
    alarm = signal.setitimer(signal.ITIMER_REAL, seconds)  # one that somebody else has set
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *alarm)
        signal.signal(signal.SIGALRM, before)


def _shared(prepared: Prepared) -> Prepared:
    """The part of a plan that this command makes, of a run that several share."""
    request, path = prepared.request, prepared.output_dir
    if path is None:
        raise BadInput("--only-launch requires --output-dir, which all commands of the run share")
    part = dataclasses.replace(
        prepared.plan,
        only=request.only_launches,
        only_next=request.only_next,
        budget_since=request.budget_since,
    )
    is_begun = (path / EXPERIMENT).is_file()  # by another of these commands
    return dataclasses.replace(
        prepared.with_plan(part), request=dataclasses.replace(request, resume=is_begun)
    )


def _launched_once(plan: Plan) -> Plan:
    """Attached ranks are one set of processes: more launches of them would not be independent."""
    if plan.experiment.measuring.repeats == 1:
        return plan
    once = dataclasses.replace(plan.experiment.measuring, repeats=1)
    note = (
        "Under torchrun or srun there is a single launch, so no confidence interval. Use --launcher slurm, "
        "or this command with --only-launch 0, 1, 2, each with the same --output-dir and --repeats 3."
    )
    return dataclasses.replace(
        plan,
        experiment=dataclasses.replace(plan.experiment, measuring=once),
        notes=(*plan.notes, note),
    )


def host_of(launcher: Launcher, *, new_ranks: bool = False) -> Host:
    """What planning needs to know of a launcher; `new_ranks` is whether every launch has new ones."""
    is_attached = new_ranks and launcher.ranks is not None
    return Host(
        machine=launcher.machine(),
        nodes=len(launcher.nodes()),
        repeatable=launcher.repeatable or new_ranks,
        ranks=launcher.ranks,
        check=check_of_ranks(launcher.ranks or 1) if is_attached else launcher.check,
    )


def _deciding(host: Host) -> tuple[object, ...]:
    """What decides which trials are planned. Names, versions and speeds do not; memory only refuses."""
    machine = host.machine
    where = (host.nodes, host.repeatable, host.ranks, machine.ranks_per_node)
    hardware = (machine.system, machine.cores, len(machine.gpus), machine.gpu_problem)
    return (*where, *hardware, {"gloo", "nccl"} & set(machine.backends))


def _formats(host: Host) -> list[dict[str, bool]]:
    """Which number formats the processor and each GPU emulate."""
    machine: Machine = host.machine
    sources: list[Precisions] = [machine.precisions, *(gpu.precisions for gpu in machine.gpus)]
    return [{support.name: support.emulated for support in precisions} for precisions in sources]
