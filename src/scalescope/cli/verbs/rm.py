"""`scalescope rm`: removes stored runs."""

import sys
from pathlib import Path

import click

from scalescope.errors import BadInput


@click.command("rm")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--yes", is_flag=True, help="Remove without asking.")
def command(runs: tuple[Path, ...], yes: bool) -> None:
    """Remove stored runs, after showing them and asking.

    Only run folders are removed, and links are not followed. Example:

      scalescope rm runs/20260131-101500-train
    """
    from scalescope.report.numbers import counted, data_size
    from scalescope.results.printable import printable
    from scalescope.studies.runs.removing import removable, remove, size_bytes

    paths = removable(runs)
    sizes = [size_bytes(path) for path in paths]
    for path, size in zip(paths, sizes, strict=True):
        click.echo(f"{printable(str(path))}  {data_size(size)}")
    what = f"{counted(len(paths), 'run')}, {data_size(sum(sizes))}"
    if not yes:
        if not sys.stdin.isatty():
            raise BadInput(
                "rm: cannot ask for confirmation without a terminal; add --yes to remove these runs"
            )
        if not click.confirm(f"Remove {what}?"):
            click.echo("Nothing was removed.")
            return
    for path in paths:
        remove(path)
    click.echo(f"Removed {what}.")
