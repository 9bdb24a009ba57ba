"""`scalescope check`: whether this machine is set up right."""

import json
import sys

import click


@click.command("check")
@click.option(
    "--world-size", type=click.IntRange(1, 65536), help="Ranks to map onto GPUs. [default: all GPUs]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the facts and the checks as JSON.")
def command(world_size: int | None, as_json: bool) -> None:
    """Look at GPUs, links, host, network, versions and variables before trusting a run.

    Exit code 3 when something would make a run meaningless.
    """
    from scalescope.launch.local import LocalLauncher
    from scalescope.report.terminal import console, show
    from scalescope.studies.check import check

    launcher = LocalLauncher()
    try:
        report, facts = check(launcher, world_size)
    finally:
        launcher.close()
    if as_json:
        click.echo(json.dumps(facts, indent=1))
    else:
        show(report.sections, console())
    sys.exit(report.exit_code)
