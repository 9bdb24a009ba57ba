"""`scalescope run`: the standard benchmark."""

from typing import Any

import click

from scalescope.cli.help_pages import own_flag
from scalescope.cli.measuring import measure
from scalescope.cli.options import measuring_verb, no_waterfall
from scalescope.errors import BadInput
from scalescope.studies.scaling.run import PARTS, RunStudy


@measuring_verb(RunStudy)
@own_flag(
    "--benchmark",
    metavar="PART[,...]",
    help="Parts to run: comm, training, memory, scaling. [default: all]",
)
@own_flag(
    "--warmup",
    type=click.IntRange(min=3),
    help="Warm-up iterations of the measuring parts. [default: 5]",
    common=False,
)
@own_flag(
    "--iters",
    type=click.IntRange(min=1),
    common=False,
    help="Measured steps per launch, instead of --window, which follows from the budget.",
)
@no_waterfall
def command(**arguments: Any) -> None:
    """Run the standard benchmark on this machine and write a report.

    Measures how training scales, how fast collectives are, and how much memory training needs.
    Examples:

      scalescope run
      scalescope run --workload transformer --budget 10m
      scalescope run --budget 10m -- torchrun --nproc-per-node={world_size} train.py
    """
    parts = tuple((arguments["benchmark"] or ",".join(PARTS)).split(","))
    for part in parts:
        if part not in PARTS:
            raise BadInput(f"--benchmark: {part!r} is not one of {', '.join(PARTS)}")
    chosen = {name: arguments[name] for name in ("warmup", "iters", "waterfall")}
    measure(RunStudy(parts=parts, **chosen), arguments)
