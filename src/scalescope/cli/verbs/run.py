"""`scalescope run`: the main job."""

from typing import Any

import click

from scalescope.cli.measuring import measure
from scalescope.cli.options import measuring_verb
from scalescope.errors import BadInput
from scalescope.experiment.yaml_file import Entries, Given


@measuring_verb("run", {"repeats": 5, "budget": 90.0})
@click.option(
    "--benchmark", metavar="PART[,...]", help="Parts to run: comm, training, memory, scaling. [default: all]"
)
@click.option("--warmup", type=click.IntRange(min=3), help="Warm-up iterations of the measuring parts.")
@click.option("--iters", type=click.IntRange(min=1), help="Measured iterations of the measuring parts.")
def command(**arguments: Any) -> None:
    """Run everything on this machine and show the result: the main job.

    Looks at the machine, measures how training scales on it, and says where the files are.
    """
    from scalescope.studies.main_job import PARTS, main_job

    parts = tuple((arguments["benchmark"] or ",".join(PARTS)).split(","))
    for part in parts:
        if part not in PARTS:
            raise BadInput(f"--benchmark: {part!r} is not one of {', '.join(PARTS)}")
    flags = _iteration_flags(arguments["warmup"], arguments["iters"])
    words = ("--benchmark", ",".join(parts)) if parts != PARTS else ()
    measure("run", main_job, arguments, extra_flags=flags, words=words, parts=parts)


def _iteration_flags(warmup: int | None, iters: int | None) -> Entries:
    """--warmup and --iters in the words of the training benchmark, whose steps include the warm-up."""
    flags: Entries = {}
    if warmup is not None:
        flags["warmup_steps"] = (Given(str(warmup), "--warmup"),)
    if iters is not None:
        steps = iters + (warmup if warmup is not None else 5)
        flags["steps_per_epoch"] = (Given(str(steps), "--iters"),)
    return flags
