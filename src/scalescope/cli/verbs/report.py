"""`scalescope report`: everything a person would show, from stored runs."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click


@click.command("report")
@click.argument("roots", nargs=-1, type=click.Path(path_type=Path), metavar="[RUN_OR_ROOT]...")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Output folder. [default: the run, or ROOT/report]"
)
@click.option("--datasets", multiple=True, metavar="NAME[,...]", help="Only these data sets.")
@click.option("--figures", is_flag=True, help="Also write every figure as PNG, SVG and PDF.")
@click.option(
    "--format",
    "formats",
    metavar="NAME[,...]",
    help="html, figures, csv, tex, md, txt, json. [default: all but figures]",
)
@click.option("--title", help="Title of the page.")
@click.option("--by", metavar="SETTING", help="Overlay the values of a setting: strategy, precision ...")
@click.option("--width", default="page", help="Width of figure files: column or page. [default: page]")
@click.option(
    "--skip-epochs",
    type=click.IntRange(0),
    default=0,
    help="Leave the first epochs out of epoch curves.",
)
@click.option(
    "--tensorboard",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Also write scalars for TensorBoard to this folder.",
)
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser.")
def command(roots: tuple[Path, ...], **arguments: Any) -> None:
    """Write a page and tables about stored runs (default: all under runs/).

    The page includes its figures; --figures also writes them as files. Folders are searched for runs.
    Measures nothing and does not need torch. Example:

      scalescope report runs/ --out report
    """
    from scalescope.studies.report import DEFAULT_FORMATS, FIGURES, PAGE, ReportOptions, report

    formats = DEFAULT_FORMATS if arguments["formats"] is None else _names([arguments["formats"]])
    options = ReportOptions(
        formats=(*formats, FIGURES) if arguments["figures"] else formats,
        title=arguments["title"],
        datasets=_names(arguments["datasets"]),
        skip_epochs=arguments["skip_epochs"],
        by=arguments["by"],
        width=arguments["width"],
        tensorboard=arguments["tensorboard"],
    )
    written = report(roots, arguments["out"], options)
    for warning in written.warnings:
        click.echo(warning, err=True)
    click.echo(written.headline)
    folders = dict.fromkeys(path.parent for path in written.files)
    counts = {folder: sum(path.parent == folder for path in written.files) for folder in folders}
    for folder, count in counts.items():
        click.echo(f"{folder}: {count} file{'' if count == 1 else 's'}")
    pages = [path for path in written.files if path.name == PAGE]
    for path in pages:
        click.echo(f"Report: {path}")
        if arguments["open_page"]:
            click.launch(str(path.absolute()))
    sys.exit(written.exit_code)


def _names(texts: Iterable[str]) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(name.strip() for text in texts for name in text.split(","))
