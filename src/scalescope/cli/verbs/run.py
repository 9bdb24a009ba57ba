"""`scalescope run`: the main job."""

from typing import Any

import click

from scalescope.cli.measuring import measure
from scalescope.cli.options import SWEEP_TEXT, measuring_verb, no_waterfall
from scalescope.errors import BadInput


@measuring_verb("run", {"repeats": 5, "budget": 110.0, "min_steps": 3, **SWEEP_TEXT})
@click.option(
    "--benchmark", metavar="PART[,...]", help="Parts to run: comm, training, memory, scaling. [default: all]"
)
@click.option(
    "--warmup", type=click.IntRange(min=3), help="Warm-up iterations of the measuring parts. [default: 5]"
)
@click.option(
    "--iters",
    type=click.IntRange(min=1),
    help="Measured steps of each launch, instead of --window, which follows from the budget.",
)
@no_waterfall
def command(**arguments: Any) -> None:
    """The main job: look at this machine and show how it scales.

    Measures how training scales here and how fast the ranks talk, and says where the files are.
    """
    from scalescope.studies.scaling.main_job import PARTS, main_job

    parts = tuple((arguments["benchmark"] or ",".join(PARTS)).split(","))
    for part in parts:
        if part not in PARTS:
            raise BadInput(f"--benchmark: {part!r} is not one of {', '.join(PARTS)}")
    chosen_parts = ("--benchmark", ",".join(parts)) if parts != PARTS else ()
    words = (*chosen_parts, *(() if arguments["waterfall"] else ("--no-waterfall",)))
    chosen = {name: arguments[name] for name in ("warmup", "iters", "waterfall")}
    measure("run", main_job, arguments, words=words, parts=parts, **chosen)
