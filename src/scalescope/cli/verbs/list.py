"""`scalescope list`: the runs that are there."""

from pathlib import Path

import click


@click.command("list")
@click.argument("root", type=click.Path(path_type=Path), default=Path("runs"))
def command(root: Path) -> None:
    """List the runs below ROOT (default: runs), oldest first."""
    from scalescope.report.runs import runs_section
    from scalescope.report.terminal import console, show

    show((runs_section(root),), console())
