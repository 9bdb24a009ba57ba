"""`scalescope explain`: where the time of a run goes, and why, from what is stored."""

from pathlib import Path

import click

from scalescope.cli.help_pages import VerbCommand


@click.command("explain", cls=VerbCommand)
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "-v", "--verbose", is_flag=True, help="Also show what was not checked and why, and where every rank ran."
)
def command(runs: tuple[Path, ...], verbose: bool) -> None:
    """Explain stored runs (default: the newest): where the time goes, why, and what to do first.

    Several runs of one machine are explained together: each adds what it measured. Nothing is measured and
    torch is not needed. Examples:

      scalescope explain
      scalescope explain runs/train runs/scale runs/comm -v
    """
    from scalescope.report.render.terminal import console, show
    from scalescope.studies.runs.explaining import explain_together

    show(explain_together(runs or (Path("runs/latest"),)), console(), verbose=verbose)
