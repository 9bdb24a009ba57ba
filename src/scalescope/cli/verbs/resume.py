"""`scalescope resume`: continues a run from what it stored."""

import os
from pathlib import Path
from typing import Any

import click

from scalescope.cli.options import given_flags, run_option


@click.command("resume")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@run_option("budget")
@run_option("repeats")
@click.option(
    "--dry-run", is_flag=True, help="Show the planned trials and their estimated time; measure nothing."
)
@click.option(
    "--trust",
    is_flag=True,
    help="Run the commands and shell lines stored in RUN, whoever wrote them.",
)
@click.option("--strict", is_flag=True, help="Exit with code 6 if the measurement is unstable.")
@click.option("-v", "--verbose", is_flag=True, help="Show intervals and how figures were computed.")
def command(run: Path, **arguments: Any) -> None:
    """Continue a stopped run with its original settings.

    Finished launches are kept; a larger --repeats adds launches. Example:

      scalescope resume runs/latest --budget 10m
    """
    import dataclasses

    from scalescope.cli.measuring import follow_rank_0, measure_prepared
    from scalescope.studies.prepared import prepare
    from scalescope.studies.runs.resuming import (
        refuse_finished,
        refuse_recorded_as_finished,
        stored_request,
        to_continue,
    )
    from scalescope.studies.runs.trust import refuse_untrusted

    context = click.get_current_context()
    stored = stored_request(run, given_flags(context))
    refuse_untrusted(run, trusted=arguments["trust"])
    if stored.directory is not None:
        os.chdir(stored.directory)  # files of the request are named from there
    request = dataclasses.replace(
        stored.request,
        dry_run=arguments["dry_run"],
        strict=arguments["strict"],
        trust=arguments["trust"],
        yes=True,  # this many trials were allowed when the run began
        started_s=context.find_root().obj,
    )
    rank_0 = follow_rank_0(stored.study, request, {})  # which may hold the folder already
    prepared = prepare(stored.study, request)
    refuse_recorded_as_finished(prepared)
    prepared = to_continue(prepared)
    refuse_finished(prepared)
    measure_prepared(prepared, {}, arguments, rank_0)
