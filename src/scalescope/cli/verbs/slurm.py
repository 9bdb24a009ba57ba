"""`scalescope slurm`: help with job scripts."""

import sys
from pathlib import Path

import click

from scalescope.cli.help_pages import VerbCommand
from scalescope.errors import BadInput, ExitCode

_LARGEST_SCRIPT_BYTES = 64 << 10


@click.group("slurm")
def command() -> None:
    """Check SLURM job scripts. (To run a verb as a job, use --launcher slurm.)"""


@command.command("lint", cls=VerbCommand)
@click.argument("script", type=click.Path(path_type=Path))
def lint_script(script: Path) -> None:
    """Find mistakes in a job script and show how to fix them.

    Exit code 8 if there are mistakes; what may be intentional is only a warning. Run it where you run sbatch.
    Example:

      scalescope slurm lint job.sbatch
    """
    from scalescope.launch.slurm.lint import lint

    found = lint(_text(script), (Path(), script.parent))
    for mistake in found:
        kind = "warning: " if mistake.may_be_intended else ""
        click.echo(f"{script}:{mistake.line}: {kind}{mistake.what}\n    fix: {mistake.fix}")
    warnings = sum(mistake.may_be_intended for mistake in found)
    mistakes = len(found) - warnings
    also = f", {_counted(warnings, 'warning')}" if warnings else ""
    click.echo(f"{script}: {_counted(mistakes, 'mistake')}{also} found")
    sys.exit(ExitCode.GATE_MISSED if mistakes else ExitCode.OK)


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _text(path: Path) -> str:
    """The script, its line breaks as they are; never more of it than a script may be."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_SCRIPT_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    if len(content) > _LARGEST_SCRIPT_BYTES:
        raise BadInput(f"{path}: too large for a job script (at most {_LARGEST_SCRIPT_BYTES >> 10} KiB)")
    if b"\0" in content:
        raise BadInput(f"{path}: not a script but binary data")
    if not content.strip():
        raise BadInput(f"{path}: empty")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{path}: not UTF-8 text") from None
