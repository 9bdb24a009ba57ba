"""`scalescope check`: whether this machine, or every machine of a job, is set up right."""

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from scalescope.cli.help_pages import VerbCommand
from scalescope.cli.streams import print_json
from scalescope.errors import BadInput

if TYPE_CHECKING:
    from scalescope.launch.torchrun.rank_context import RankContext
    from scalescope.studies.study import Report


@click.command("check", cls=VerbCommand)
@click.option(
    "--world-size", type=click.IntRange(1, 65536), help="Ranks to map onto GPUs. [default: all GPUs]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the facts and the checks as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="With several hosts, show every check per host.")
def command(world_size: int | None, as_json: bool, verbose: bool) -> None:
    """Check GPUs, links, host, network, versions and variables before you trust a run.

    Under torchrun or srun, checks every host, one row per host. Exit code 3 if something would make a run
    meaningless. Examples:

      scalescope check
      srun --ntasks-per-node=1 scalescope check
    """
    from scalescope.launch.torchrun.rank_context import rank_context
    from scalescope.report.render.terminal import console, show

    context = rank_context(os.environ)
    if context is not None and context.rank != 0:
        from scalescope.launch.torchrun.children import follow

        sys.exit(follow(context))
    report, facts = _of_all_hosts(context, world_size) if context else _of_this_host(world_size)
    if as_json:
        print_json(facts)
    else:
        show(report.sections, console(), verbose=verbose)
    sys.exit(report.exit_code)


def _of_this_host(world_size: int | None) -> "tuple[Report, dict[str, Any]]":
    from scalescope.launch.local.launcher import LocalLauncher
    from scalescope.studies.checks import check

    launcher = LocalLauncher()
    try:
        return check(launcher, world_size)
    finally:
        launcher.close()


def _of_all_hosts(context: "RankContext", world_size: int | None) -> "tuple[Report, dict[str, Any]]":
    from scalescope.launch.torchrun.launcher import AttachedLauncher
    from scalescope.studies.checks import check, check_hosts

    launcher = AttachedLauncher(context)
    try:
        ranks = launcher.ranks_of_nodes()
        if len(ranks) == 1:
            return check(launcher, world_size or launcher.ranks)
        if world_size is not None:
            raise BadInput(
                "--world-size cannot be used with several hosts; they are checked with the running ranks"
            )
        return check_hosts(launcher, ranks)
    finally:
        launcher.close()
