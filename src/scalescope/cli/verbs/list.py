"""`scalescope list`: the runs that are there."""

from pathlib import Path

import click


@click.command("list")
@click.argument("root", type=click.Path(path_type=Path), default=Path("runs"))
def command(root: Path) -> None:
    """List the runs below ROOT (default: runs), oldest first."""
    from scalescope.report.render.terminal import console, show
    from scalescope.report.runs import runs_section

    show((runs_section(root),), console())
