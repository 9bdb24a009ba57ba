"""`scalescope run`: the main job."""

from typing import Any

import click

from scalescope.cli.measuring import measure
from scalescope.cli.options import measuring_verb
from scalescope.errors import BadInput


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
    words = ("--benchmark", ",".join(parts)) if parts != PARTS else ()
    iterations = {"warmup": arguments["warmup"], "iters": arguments["iters"]}
    measure("run", main_job, arguments, words=words, parts=parts, **iterations)
