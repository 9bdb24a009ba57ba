"""What every measuring verb's command does around its study: launcher, signals, output, exit code."""

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalescope.cli.interruption import interruptible
from scalescope.cli.options import ON_SLURM, given_flags
from scalescope.errors import BadInput
from scalescope.experiment.given import Entries

if TYPE_CHECKING:
    from scalescope.cli.progress import TerminalWatcher
    from scalescope.launch.attached.rank_context import RankContext
    from scalescope.studies.request import Request
    from scalescope.studies.study import StudyReport


def measure(
    verb: str,
    study: Callable[..., Any],
    arguments: dict[str, Any],
    *,
    every_placement: bool = False,
    benchmark: str = "train",
    words: tuple[str, ...] = (),
    **options: Any,
) -> None:
    """Run a study and show what it found; under torchrun or srun, ranks other than 0 only follow."""
    from scalescope.launch.attached.rank_context import rank_context
    from scalescope.studies.request import Request, split_slurm_flags

    flags, of_job = split_slurm_flags(given_flags(click.get_current_context()))
    only = arguments["only_launch"]
    request = Request(
        verb=verb,
        benchmark=benchmark,
        file=arguments["experiment"],
        flags=flags,
        words=words,
        resume=arguments["resume"],
        dry_run=arguments["dry_run"],
        strict=arguments["strict"],
        yes=arguments["yes"],
        only_launches=None if only is None else (only,),
        budget_since=arguments["budget_since"],
    )
    output_dir = request.experiment({}).measuring.output_dir  # bad input is said before torch is loaded
    if _is_restarted(output_dir):
        request = dataclasses.replace(request, resume=True)
    place = rank_context(os.environ)
    on_slurm = _is_for_slurm(request, of_job, arguments, place)
    if place is not None and place.rank != 0:
        from scalescope.launch.attached.launcher import follow

        sys.exit(follow(place))
    from scalescope.cli.progress import TerminalWatcher
    from scalescope.report.render.terminal import console, show

    with (
        interruptible(),
        TerminalWatcher(every_placement=every_placement, verbose=arguments["verbose"]) as watcher,
    ):
        if on_slurm:
            report = _on_slurm(request, of_job, arguments["setup"], study, watcher, options)
        else:
            report = _with_ranks(request, place, study, watcher, options)
    show(report.sections, console(), verbose=arguments["verbose"])
    _say_where(report)
    sys.exit(report.exit_code)


def _is_restarted(output_dir: str | None) -> bool:
    """Whether torchrun started us anew after a rank failed, and the run it began is there to go on with."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" or output_dir is None:
        return False
    from scalescope.results.run_folder import EXPERIMENT

    return (Path(output_dir) / EXPERIMENT).is_file()


def _with_ranks(
    request: "Request",
    place: "RankContext | None",
    study: Callable[..., Any],
    watcher: "TerminalWatcher",
    options: dict[str, Any],
) -> "StudyReport":
    """Measure with the ranks that are there, or with our own."""
    from scalescope.launch.attached.launcher import AttachedLauncher
    from scalescope.launch.attached.rank_context import stray_variables
    from scalescope.launch.local.launcher import LocalLauncher

    for name in stray_variables(os.environ):
        watcher.noted(f"{name} is set but makes no complete set of rank variables: ignored.")
    launcher = AttachedLauncher(place) if place else LocalLauncher()
    try:
        if isinstance(launcher, AttachedLauncher):
            options["most_ranks"] = launcher.ranks
            for note in launcher.notes():
                watcher.noted(note)
        report: StudyReport = study(request, launcher, watcher, **options)
    finally:
        launcher.close()
    return report


def _is_for_slurm(
    request: "Request", of_job: Entries, arguments: dict[str, Any], place: "RankContext | None"
) -> bool:
    """Whether a job is to be submitted, or one of a job's runs continued."""
    from scalescope.studies.slurm.slurm_request import is_slurm_run, slurm_from

    typed = slurm_from(of_job).launcher if "launcher" in of_job else None
    if typed == "slurm" and place is not None:
        raise BadInput("--launcher slurm submits a job, and this is a rank of one already")
    if place is not None or request.only_launches is not None:  # a file may ask for the job that we are in
        return False
    written = request.of_job()
    launcher = typed or (slurm_from(written).launcher if "launcher" in written else None)
    if launcher == "slurm" and request.verb not in ON_SLURM:
        origin = written["launcher"][0].origin
        raise BadInput(f"{origin}: {request.verb} cannot be a job; {', '.join(ON_SLURM)} can")
    chosen = launcher == "slurm" or (launcher is None and is_slurm_run(request))
    given = [*of_job, *(["setup"] if arguments.get("setup") else [])]
    if not chosen and set(given) - {"launcher"}:
        name = next(name for name in given if name != "launcher")
        raise BadInput(f"--{name.replace('_', '-')} is for jobs; add --launcher slurm")
    return chosen


def _on_slurm(
    request: "Request",
    of_job: Entries,
    setup: tuple[str, ...],
    study: Callable[..., Any],
    watcher: "TerminalWatcher",
    options: dict[str, Any],
) -> "StudyReport":
    """Show the job's script, or submit it and show what it found."""
    from scalescope.studies.slurm.job import run_on_slurm
    from scalescope.studies.slurm.slurm_request import prepare
    from scalescope.studies.study import StudyReport

    if "--nsys" in request.words:
        raise BadInput("--nsys runs beside ranks of our own; use --launcher local")
    defaults = sys.modules[study.__module__].DEFAULTS
    written = request.of_job()
    lines = tuple(one.text for one in written.pop("setup", ()))
    run = prepare(request, {**written, **of_job}, setup or lines, defaults)
    if request.dry_run:
        click.echo(run.script, nl=False)
        return StudyReport(sections=())
    return run_on_slurm(run, study, watcher, **options)


def _say_where(report: Any) -> None:
    """The result in a sentence, what to do next, and where everything is."""
    if report.headline is not None:
        click.echo(f"\nIn short: {report.headline}")
    if report.next_step is not None:
        click.echo(f"Next: {report.next_step}")
    if report.path is not None:
        click.echo(f"Results: {report.path / 'results.json'}")
    if report.page is not None:
        click.echo(f"Report: {report.page}")
