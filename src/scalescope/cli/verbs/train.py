"""`scalescope train`: one configuration, measured."""

from typing import Any

import click

from scalescope.cli.measuring import measure
from scalescope.cli.options import measuring_verb


@measuring_verb("train", {"repeats": 1, "window": 10.0})
@click.option(
    "--profile", is_flag=True, help="Also record a trace of a few steps, in a launch that is not timed."
)
@click.option(
    "--profile-steps", type=click.IntRange(1, 100), metavar="INT", help="Steps to record. [default: 3]"
)
@click.option("--profile-ranks", metavar="INT[,...]", help="Ranks to record. [default: all]")
@click.option(
    "--profile-ranges-only",
    is_flag=True,
    help="Mark the parts of a step (NVTX) for a profiler attached from outside, and record nothing.",
)
@click.option(
    "--nsys", is_flag=True, help="Write the command for Nsight Systems, and run it where it exists."
)
def command(**arguments: Any) -> None:
    """Measure how fast one configuration trains.

    Lists (--batch-size 32,256) measure each value. Example:

      scalescope train --world-size 2 --batch-size 256 --repeats 5
    """
    from scalescope.studies.training.train import train

    measure("train", train, arguments, every_placement=True, **_profiling(arguments))


_FLAGS = {
    "steps": "--profile-steps",
    "ranks": "--profile-ranks",
    "ranges_only": "--profile-ranges-only",
    "nsys": "--nsys",
}


def _profiling(arguments: dict[str, Any]) -> dict[str, Any]:
    """What is to be recorded, and the words under which the run remembers it."""
    from scalescope.errors import BadInput
    from scalescope.studies.trace.profiling import Profiling

    given = {name: arguments[flag[2:].replace("-", "_")] for name, flag in _FLAGS.items()}
    given = {name: value for name, value in given.items() if value not in (None, False)}
    if not arguments["profile"]:
        if given:
            raise BadInput(f"{_FLAGS[next(iter(given))]} needs --profile")
        return {}
    words = [
        "--profile",
        *(_FLAGS[name] if value is True else f"{_FLAGS[name]}={value}" for name, value in given.items()),
    ]
    return {"profiling": Profiling(**given), "words": tuple(words)}
