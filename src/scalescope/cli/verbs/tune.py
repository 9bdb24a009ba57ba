"""`scalescope tune`: which setting helps."""

from typing import Any

import click

from scalescope.catalog.setting import threshold_from
from scalescope.cli.help_pages import own_flag
from scalescope.cli.measuring import measure
from scalescope.cli.options import measuring_verb
from scalescope.studies.tuning.tune import TuneStudy, levers_from


@measuring_verb(TuneStudy)
@own_flag(
    "--levers",
    multiple=True,
    metavar="NAME[=VALUE],...",
    help="Settings to change; each tries its usual values, or the one given. [default: all]",
    brief="Settings to change. [all]",
)
@own_flag(
    "--threshold",
    default="3%",
    metavar="PERCENT",
    brief="The smallest difference that matters. [3%]",
    help="The smallest difference that matters; the number of launches may not suffice to detect smaller "
    "ones. [default: 3%]",
)
@own_flag(
    "--combine/--no-combine",
    default=True,
    help="Search for levers that help together; --no-combine compares each alone. [default: --combine]",
    brief="Levers together, or each alone. [--combine]",
)
@own_flag(
    "--verify-loss",
    type=click.IntRange(8, 1_000_000),
    metavar="STEPS",
    common=False,
    help="After the search, train so many steps with the current settings and with the recommended ones, and "
    "compare their losses; what trains to another loss is not recommended. [default: only the short windows "
    "of the search]",
)
@own_flag(
    "--keep-numerics",
    is_flag=True,
    common=False,
    help="Leave out every lever that may change the numbers that training computes: formats, compilation, "
    "fused optimizers and others. [default: tried, with the loss compared]",
)
def command(**arguments: Any) -> None:
    """Find the settings that make one configuration faster, within a budget.

    The most promising levers are tried on top of the best so far; the winner is confirmed in new launches.
    Under torchrun or srun there are no verdicts; as a job (--launcher slurm) there are. Examples:

      scalescope tune --workload my.py:build --budget 3m
      scalescope tune --world-size 2 --levers comm_hook,bucket_cap_mb --budget 5m
      scalescope tune --budget 5m -- python train.py --batch-size 32
    """
    levers = levers_from(arguments["levers"] or ("all",))
    study = TuneStudy(
        levers=levers,
        threshold=threshold_from(arguments["threshold"], "--threshold"),
        combine=arguments["combine"],
        verify_loss=arguments["verify_loss"],
        keep_numerics=arguments["keep_numerics"],
    )
    measure(study, arguments)
