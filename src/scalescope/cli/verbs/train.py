"""`scalescope train`: one configuration, measured."""

from typing import Any

import click

from scalescope.cli.help_pages import own_flag
from scalescope.cli.measuring import measure
from scalescope.cli.options import measuring_verb
from scalescope.errors import BadInput
from scalescope.studies.trace import FLAGS, Profiling
from scalescope.studies.train import TrainStudy


@measuring_verb(TrainStudy)
@own_flag(
    "--profile",
    is_flag=True,
    help="Also record a trace of a few steps, in a separate launch that is not timed.",
    brief="Also record a trace of a few steps.",
)
@own_flag(
    "--profile-steps",
    type=click.IntRange(1, 100),
    metavar="INT",
    help="Steps to record. [default: 3]",
    common=False,
)
@own_flag("--profile-ranks", metavar="INT[,...]", help="Ranks to record. [default: all]", common=False)
@own_flag(
    "--profile-ranges-only",
    is_flag=True,
    help="Only mark the parts of a step (NVTX) for an external profiler; record nothing.",
    common=False,
)
@own_flag(
    "--nsys",
    is_flag=True,
    help="Write the command for Nsight Systems, and run it if nsys is installed.",
    common=False,
)
@own_flag(
    "--no-breakdown",
    is_flag=True,
    help="Measure only the speed; skip the launches that break down a step.",
    brief="Measure only the speed.",
)
def command(**arguments: Any) -> None:
    """Measure how fast one configuration trains, and where the time of a step goes.

    Lists (--batch-size 32,256) measure each value. Examples:

      scalescope train --world-size 2 --batch-size 256 --repeats 5
      scalescope train --workload my.py:build --amp --profile
      scalescope train --world-size 2 -- torchrun --nproc-per-node=2 train.py
    """
    measure(TrainStudy(profiling=_profiling(arguments), breakdown=not arguments["no_breakdown"]), arguments)


def _profiling(arguments: dict[str, Any]) -> Profiling | None:
    """What is to be recorded; None without --profile."""
    given = {name: arguments[flag[2:].replace("-", "_")] for name, flag in FLAGS.items()}
    given = {name: value for name, value in given.items() if value not in (None, False)}
    if arguments["profile"]:
        return Profiling(**given)
    if given:
        raise BadInput(f"{FLAGS[next(iter(given))]} requires --profile")
    return None
