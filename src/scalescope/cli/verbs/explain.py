"""`scalescope explain`: where the time of a run or of a job's traces goes, and why."""

import sys
from pathlib import Path

import click

from scalescope.cli.help_pages import VerbCommand
from scalescope.errors import BadInput


@click.command("explain", cls=VerbCommand)
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="RUN_OR_TRACE...")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also show skipped checks and why, and where each rank ran.",
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Also write the results of traces as JSON."
)
def command(runs: tuple[Path, ...], verbose: bool, json_file: Path | None) -> None:
    """Explain stored runs (default: the newest) or profiler traces: where the time goes, why, and what to do.

    Several runs of one machine are explained together: each adds its measurements. Traces are files or
    folders from torch's profiler (.json, .json.gz), of one rank or all ranks. Measures nothing and does not
    need torch. Examples:

      scalescope explain
      scalescope explain runs/train runs/scale runs/comm -v
      scalescope explain traces/ --json traces.json
    """
    from scalescope.report.render.terminal import console, show
    from scalescope.studies.runs.stored_runs import explain_together
    from scalescope.studies.traces import are_traces

    if are_traces(runs):
        _explain_traces(runs, verbose, json_file)
        return
    if json_file is not None:
        raise BadInput("--json requires traces; the results of a run are in its results.json")
    show(explain_together(runs or (Path("runs/latest"),)), console(), verbose=verbose)


def _explain_traces(paths: tuple[Path, ...], verbose: bool, json_file: Path | None) -> None:
    from scalescope.report.render.terminal import console, show
    from scalescope.results.files import to_text, write_atomically
    from scalescope.studies.traces import explain_traces

    explained = explain_traces(paths, show_progress)
    show(explained.sections, console(), verbose=verbose)
    if json_file is not None:
        write_atomically(json_file, to_text(explained.data))


def show_progress(done: int, of: int) -> None:
    """How many traces are read, on a terminal's standard error; the line is cleared at the end."""
    if sys.stderr.isatty() and of > 1:
        sys.stderr.write(f"\r{done} of {of} traces read" if done < of else "\r\033[K")
        sys.stderr.flush()
