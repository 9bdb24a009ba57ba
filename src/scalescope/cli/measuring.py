"""What every measuring verb's command does around its study: launcher, signals, output, exit code."""

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from scalescope.cli.interruption import interruptible
from scalescope.cli.options import given_flags


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
    """Run a study and show what it found; under torchrun, ranks other than 0 only follow."""
    from scalescope.launch.attached import AttachedLauncher, follow, membership, stray_variables
    from scalescope.launch.local import LocalLauncher
    from scalescope.studies.request import Request

    request = Request(
        verb=verb,
        benchmark=benchmark,
        file=arguments["experiment"],
        flags=given_flags(click.get_current_context()),
        words=words,
        resume=arguments["resume"],
        dry_run=arguments["dry_run"],
        strict=arguments["strict"],
        yes=arguments["yes"],
    )
    request.experiment({})  # bad input is said before torch is loaded
    place = membership(os.environ)
    if place is not None and place.rank != 0:
        sys.exit(follow())
    from scalescope.cli.progress import TerminalWatcher
    from scalescope.report.terminal import console, show

    with (
        interruptible(),
        TerminalWatcher(every_placement=every_placement, verbose=arguments["verbose"]) as watcher,
    ):
        for name in stray_variables(os.environ):
            watcher.noted(f"{name} is set but makes no complete set of rank variables: ignored.")
        launcher = AttachedLauncher(place) if place else LocalLauncher()
        if place:
            options["most_ranks"] = place.world_size
        try:
            report = study(request, launcher, watcher, **options)
        finally:
            launcher.close()
    show(report.sections, console(), verbose=arguments["verbose"])
    _say_where(report)
    sys.exit(report.exit_code)


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
