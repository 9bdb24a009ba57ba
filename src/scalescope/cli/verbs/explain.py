"""`scalescope explain`: why a run does not scale, from what is stored."""

from pathlib import Path

import click

from scalescope.cli.help_pages import VerbCommand


@click.command("explain", cls=VerbCommand)
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "-v", "--verbose", is_flag=True, help="Also show what was not checked and why, and where every rank ran."
)
def command(runs: tuple[Path, ...], verbose: bool) -> None:
    """Explain stored runs (default: the newest): where the speed goes, why, and what to do first.

    Nothing is measured and torch is not needed. Examples:

      scalescope explain
      scalescope explain runs/base runs/new -v
    """
    from scalescope.report.render.terminal import console, show
    from scalescope.studies.stored import explain

    for path in runs or (Path("runs/latest"),):
        if len(runs) > 1:
            click.echo(f"{path}")
        show(explain(path), console(), verbose=verbose)
