"""What every measuring verb's command does around its study: flags, signals, output, exit code."""

import dataclasses
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from scalescope.catalog.measuring import NEXT_LAUNCH
from scalescope.cli.options import given_flags, own_keys
from scalescope.cli.streams import interruptible
from scalescope.errors import BadInput, Interrupted
from scalescope.experiment.given import Entries
from scalescope.studies.study import Report, Study

if TYPE_CHECKING:
    from scalescope.launch.torchrun.rank_context import RankContext
    from scalescope.progress.terminal import TerminalWatcher
    from scalescope.studies.prepared import Prepared
    from scalescope.studies.request import Request

_OWN_RANKS = (
    "a command starts its own ranks: run scalescope without torchrun or srun, and put torchrun in the command"
)


def measure(study: Study, arguments: dict[str, Any]) -> NoReturn:
    """Run a study as its verb was typed, and show its report."""
    from scalescope.studies.prepared import prepare

    request, job_flags = _request_of(study, arguments)
    context = follow_rank_0(study, request, job_flags)
    prepared = prepare(study, request)  # bad input is refused before torch is loaded
    if _is_restarted(prepared):
        prepared = prepare(study, dataclasses.replace(request, resume=True))
    elif request.resume and not request.is_shared:
        from scalescope.studies.runs.resuming import to_continue

        prepared = to_continue(prepared)
    measure_prepared(prepared, job_flags, arguments, context)


def follow_rank_0(study: Study, request: "Request", job_flags: Entries) -> "RankContext | None":
    """Where torchrun or srun started this process: its place. Ranks other than 0 stay in here until the end:
    they only do what rank 0 publishes."""
    from scalescope.launch.torchrun.rank_context import rank_context

    context = rank_context(os.environ)
    if context is not None and context.rank != 0:
        from scalescope.launch.torchrun.children import follow
        from scalescope.studies.slurm.slurm_request import refuse_job_in_job

        refuse_job_in_job(job_flags)
        experiment = request.experiment(study.defaults)
        if experiment.is_command:
            raise BadInput(_OWN_RANKS)
        sys.exit(follow(context, experiment.measuring.init_timeout))
    return context


def measure_prepared(
    prepared: "Prepared", job_flags: Entries, arguments: dict[str, Any], context: "RankContext | None"
) -> NoReturn:
    """Run a study, here or as a job, and show its report."""
    from scalescope.progress.terminal import TerminalWatcher
    from scalescope.studies.running import run_here
    from scalescope.studies.slurm.slurm_request import is_for_slurm

    setup, verbose = arguments.get("setup", ()), arguments["verbose"]
    on_slurm = is_for_slurm(prepared, job_flags, setup, is_rank=context is not None)
    if prepared.experiment.is_command and context is not None:
        raise BadInput(_OWN_RANKS)
    watcher = TerminalWatcher(every_placement=prepared.study.every_placement, verbose=verbose)
    try:
        with interruptible(), watcher:
            if on_slurm:
                report = _on_slurm(prepared, job_flags, setup, watcher)
            else:
                report = run_here(prepared, context, watcher)
    except Interrupted as interruption:
        if isinstance(interruption.report, Report):  # the answer so far, then how to continue
            _show(dataclasses.replace(interruption.report, next_step=None), watcher, verbose=verbose)
        raise
    _show(report, watcher, verbose=verbose)
    sys.exit(report.exit_code)


def _show(report: Report, watcher: "TerminalWatcher", *, verbose: bool) -> None:
    """The report, without what was printed before."""
    from scalescope.report.performance import without_lines
    from scalescope.report.render.terminal import console, show

    once = () if report.headline is None else (report.headline,)  # shown below: in short
    show(without_lines((*once, *watcher.failures), report.sections), console(), verbose=verbose)
    show_where(report)


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
        raise BadInput(f"--only-launch: {only} cannot be used with {study.verb}; {works}")


def _is_restarted(prepared: "Prepared") -> bool:
    """Whether torchrun started this command again after a rank failed, and the run it began is there."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" or prepared.output_dir is None:
        return False
    from scalescope.results.run_folder import EXPERIMENT

    return (prepared.output_dir / EXPERIMENT).is_file()


def _on_slurm(
    prepared: "Prepared", job_flags: Entries, setup: tuple[str, ...], watcher: "TerminalWatcher"
) -> Report:
    """Show the job's script, or submit it and show what it measured."""
    from scalescope.studies.slurm.job import run_on_slurm
    from scalescope.studies.slurm.slurm_request import prepared_job

    job = prepared_job(prepared, job_flags, setup)
    for note in job.notes:
        click.echo(note, err=True)  # the script alone goes to a file
    if prepared.request.dry_run:
        click.echo(job.script, nl=False)
        click.echo(f"Nothing was submitted or written; a job would write to {job.path}.", err=True)
        return Report(sections=())
    return run_on_slurm(job, watcher)


def show_where(report: Report) -> None:
    """The result in a sentence, what to do next, and where the files are."""
    from scalescope.report.render.cells import command_line

    if report.headline is not None:
        click.echo(f"\nIn short: {report.headline}")
    if report.next_step is not None:
        click.echo(f"Next: {command_line(report.next_step)}")
    if report.path is not None:
        click.echo(f"Results: {report.path / 'results.json'}")
    if report.page is not None:
        click.echo(f"Report: {report.page}")
