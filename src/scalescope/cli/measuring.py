"""What every measuring verb's command does around its study: launcher, signals, output, exit code."""

import contextlib
import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from scalescope.catalog.measuring import NEXT_LAUNCH
from scalescope.cli.interruption import interruptible, time_limit
from scalescope.cli.options import given_flags, own_keys
from scalescope.errors import BadInput, CannotRun, ScalescopeError
from scalescope.experiment.given import Entries
from scalescope.results.run_record import round_duration
from scalescope.studies.study import Report, Study

if TYPE_CHECKING:
    from scalescope.cli.progress import TerminalWatcher
    from scalescope.launch.allocation.allocation import Allocation
    from scalescope.launch.attached.rank_context import RankContext
    from scalescope.launch.local.launcher import LocalLauncher
    from scalescope.studies.request import Request
    from scalescope.studies.watcher import CampaignWatcher

_LEAST_BUDGET_S = 30.0  # to suggest, where nothing is known but that torch starts slowly


def measure(study: Study, arguments: dict[str, Any]) -> None:
    """Run a study as its verb was typed, and show its report."""
    request, job_flags = _request_of(study, arguments)
    output_dir = request.experiment({}).measuring.output_dir  # bad input is refused before torch is loaded
    if _is_restarted(output_dir):
        request = dataclasses.replace(request, resume=True)
    elif request.resume and not request.is_shared and not is_following():
        from scalescope.studies.runs.resuming import refuse_from_files
        from scalescope.studies.runs.trust import refuse_untrusted

        request = request.with_run_to_resume()
        if request.takes_stored_request:
            refuse_untrusted(request.folder_to_resume, trusted=request.trust)
        refuse_from_files(study, request)
    measure_request(study, request, job_flags, arguments)


def is_following() -> bool:
    """Whether this is a rank of torchrun or srun other than 0, which only does what rank 0 publishes."""
    from scalescope.launch.attached.rank_context import rank_context

    context = rank_context(os.environ)
    return context is not None and context.rank != 0


def measure_request(
    study: Study, request: "Request", job_flags: Entries, arguments: dict[str, Any]
) -> NoReturn:
    """Run a study and show its report; under torchrun or srun, ranks other than 0 only follow."""
    from scalescope.launch.attached.rank_context import rank_context

    context = rank_context(os.environ)
    on_slurm = _is_for_slurm(study, request, job_flags, arguments, context)
    if request.experiment({}).is_command:
        _refuse_ranks_of_others(context)
    if context is not None and context.rank != 0:
        from scalescope.launch.attached.follower import follow

        sys.exit(follow(context, request.experiment(study.defaults).measuring.init_timeout))
    from scalescope.cli.progress import TerminalWatcher
    from scalescope.report.performance import without_lines
    from scalescope.report.render.terminal import console, show

    with (
        interruptible(),
        TerminalWatcher(every_placement=study.every_placement, verbose=arguments["verbose"]) as watcher,
    ):
        if on_slurm:
            report = _on_slurm(study, request, job_flags, arguments.get("setup", ()), watcher)
        else:
            report = with_ranks(study, request, context, watcher)
    once = () if report.headline is None else (report.headline,)  # shown below: in short
    show(without_lines(once, report.sections), console(), verbose=arguments["verbose"])
    show_where(report)
    sys.exit(report.exit_code)


def _refuse_ranks_of_others(context: "RankContext | None") -> None:
    """A training command starts its own ranks, for every launch anew."""
    if context is not None:
        raise BadInput(
            "a command starts its own ranks: run scalescope without torchrun or srun, and put torchrun into "
            "the command"
        )


def _request_of(study: Study, arguments: dict[str, Any]) -> "tuple[Request, Entries]":
    """What was asked of the measurement, and what of SLURM."""
    from scalescope.studies.request import Request, split_slurm_flags

    context = click.get_current_context()
    flags, job_flags = split_slurm_flags(given_flags(context))
    only = arguments["only_launch"]
    _check_only_launch(study, only)
    request = Request(
        verb=study.verb,
        benchmark=study.benchmark,
        file=arguments["experiment"],
        flags=flags,
        resume=arguments["resume"],
        dry_run=arguments["dry_run"],
        strict=arguments["strict"],
        yes=arguments["yes"],
        trust=arguments["trust"],
        only_launches=(only,) if isinstance(only, int) else None,
        only_next=only == NEXT_LAUNCH,
        budget_since=arguments["budget_since"],
        own_keys=own_keys(context.command),
        started_s=context.find_root().obj,
    )
    return request, job_flags


def _check_only_launch(study: Study, only: int | str | None) -> None:
    """Refuse a number where results decide what is launched, and `next` where the plan does."""
    if only is not None and study.takes_turns != (only == NEXT_LAUNCH):
        works = f"it takes {NEXT_LAUNCH}" if study.takes_turns else "it takes a number from 0"
        raise BadInput(f"--only-launch: {only} is not for {study.verb}; {works}")


def _is_restarted(output_dir: str | None) -> bool:
    """Whether torchrun started this command again after a rank failed, and the run it began is there."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" or output_dir is None:
        return False
    from scalescope.results.run_folder import EXPERIMENT

    return (Path(output_dir) / EXPERIMENT).is_file()


def with_ranks(
    study: Study,
    request: "Request",
    context: "RankContext | None",
    watcher: "CampaignWatcher",
) -> Report:
    """Measure with the ranks that are there, or with ranks started for it."""
    from scalescope.launch.attached.launcher import AttachedLauncher
    from scalescope.launch.attached.rank_context import stray_variables
    from scalescope.studies.execution import run_study

    for name in stray_variables(os.environ):
        watcher.noted(f"{name} is set without the other variables of a rank: ignored.")
    with contextlib.ExitStack() as held:
        try:
            limits = request.experiment(study.defaults).measuring
            launcher = (
                AttachedLauncher(context, limits.init_timeout) if context else _local_launcher(study, request)
            )
            held.callback(launcher.close)
            if isinstance(launcher, AttachedLauncher):
                for note in launcher.notes():
                    watcher.noted(note)
            report = run_study(study, request, launcher, watcher)
        except ScalescopeError as error:
            if request.is_shared:
                _record_error(request, error)
            raise
        return report if report.run is None else study.after_measuring(report, own_ranks=launcher.repeatable)


def _local_launcher(study: Study, request: "Request") -> "LocalLauncher":
    """A launcher whose machine is probed; a budget that starting torch spends ends that too."""
    from scalescope.launch.allocation.allocation import current_allocation
    from scalescope.launch.local.launcher import LocalLauncher
    from scalescope.studies.refusal import refuse_before_torch

    measuring = request.experiment(study.defaults).measuring
    budget_s, left_s = measuring.budget, None
    if budget_s is not None and request.started_s is not None:
        left_s = budget_s - (time.monotonic() - request.started_s)
    spent = CannotRun(
        f"the budget of {budget_s or 0.0:g} s was spent while torch was loaded; nothing was measured; "
        f"try --budget {round_duration(max(_LEAST_BUDGET_S, 4.0 * (budget_s or 0.0)))}"
    )
    with time_limit(left_s, spent):
        allocation = current_allocation(os.environ) if request.experiment({}).is_command else None
        launcher = LocalLauncher() if allocation is None else _allocation_launcher(allocation)
        launcher.init_timeout_s = measuring.init_timeout
        try:
            plan = refuse_before_torch(study, request.with_run_to_resume(), launcher)
            launcher.expect(plan.all_trials if plan else ())
            launcher.machine()
        except OSError as error:  # a control group may limit processes without showing it
            launcher.close()
            raise CannotRun(f"the process that starts ranks cannot be started: {error.strerror}") from None
        except BaseException:
            launcher.close()
            raise
    return launcher


def _allocation_launcher(allocation: "Allocation") -> "LocalLauncher":
    from scalescope.launch.allocation.launcher import AllocationLauncher

    return AllocationLauncher(allocation)


def _record_error(request: "Request", error: ScalescopeError) -> None:
    """Leave what stopped a step of a job in the run folder, where the command that submitted it looks."""
    from scalescope.results.run_folder import RunFolder
    from scalescope.results.run_record import UNKNOWN_VERB, RunEnd, read_run_record, write_run_record
    from scalescope.studies.slurm.slurm_request import is_job_folder

    output_dir = request.experiment({}).measuring.output_dir
    if output_dir is None or not is_job_folder(Path(output_dir)):
        return
    with contextlib.suppress(Exception):
        folder = RunFolder.open(Path(output_dir), resume=True)  # fails where another step measures
        try:
            stored = read_run_record(folder.path)
            if stored.end is None and stored.verb in (UNKNOWN_VERB, request.verb):
                end = RunEnd(why="failed", message=str(error))
                write_run_record(folder.path, dataclasses.replace(stored, verb=request.verb, end=end))
        finally:
            folder.close()


def _is_for_slurm(
    study: Study,
    request: "Request",
    job_flags: Entries,
    arguments: dict[str, Any],
    context: "RankContext | None",
) -> bool:
    """Whether a job is to be submitted, or one of a job's runs continued."""
    from scalescope.studies.slurm.slurm_request import is_slurm_run, slurm_from

    typed = slurm_from(job_flags).launcher if "launcher" in job_flags else None
    if typed == "slurm" and context is not None:
        raise BadInput("--launcher slurm submits a job; it cannot be used inside one")
    if context is not None or request.is_shared:  # a file may ask for the job that this is
        return False
    written = request.of_job()
    launcher = typed or (slurm_from(written).launcher if "launcher" in written else None)
    if launcher == "slurm" and not study.runs_on_slurm:
        from scalescope.studies.stored import all_studies

        origin = written["launcher"][0].origin
        able = ", ".join(sorted(kind.verb for kind in all_studies() if kind.runs_on_slurm))
        raise BadInput(f"{origin}: {study.verb} cannot be a job; {able} can")
    chosen = launcher == "slurm" or (launcher is None and is_slurm_run(request))
    given = [*job_flags, *(["setup"] if arguments.get("setup") else [])]
    if not chosen and set(given) - {"launcher"}:
        name = next(name for name in given if name != "launcher")
        raise BadInput(f"--{name.replace('_', '-')} is for jobs; add --launcher slurm")
    return chosen


def _on_slurm(
    study: Study,
    request: "Request",
    job_flags: Entries,
    setup: tuple[str, ...],
    watcher: "TerminalWatcher",
) -> Report:
    """Show the job's script, or submit it and show what it measured."""
    from scalescope.studies.slurm.job import run_on_slurm
    from scalescope.studies.slurm.slurm_request import prepare

    if "--nsys" in study.flags():
        raise BadInput("--nsys cannot be used with --launcher slurm; use --launcher local")
    written = request.of_job()
    lines = tuple(given.text for given in written.pop("setup", ()))
    run = prepare(study, request, {**written, **job_flags}, setup or lines)
    for note in run.notes:
        click.echo(note, err=True)  # the script alone goes to a file
    if request.dry_run:
        click.echo(run.script, nl=False)
        click.echo(f"Nothing was submitted or written; a job would write to {run.path}.", err=True)
        return Report(sections=())
    return run_on_slurm(run, watcher)


def show_where(report: Report) -> None:
    """The result in a sentence, what to do next, and where the files are."""
    from scalescope.report.render.text import command_line

    if report.headline is not None:
        click.echo(f"\nIn short: {report.headline}")
    if report.next_step is not None:
        click.echo(f"Next: {command_line(report.next_step)}")
    if report.path is not None:
        click.echo(f"Results: {report.path / 'results.json'}")
    if report.page is not None:
        click.echo(f"Report: {report.page}")
