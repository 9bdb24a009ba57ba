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
    help="Settings to try, each with its usual values or the one given. [default: all]",
    brief="Settings to try. [all]",
)
@own_flag(
    "--threshold",
    default="3%",
    metavar="PERCENT",
    brief="The smallest difference that matters. [3%]",
    help="The smallest difference that matters; detecting a smaller one may take more launches. "
    "[default: 3%]",
)
@own_flag(
    "--combine/--no-combine",
    default=True,
    help="Search for combinations of levers; --no-combine compares each lever alone. [default: --combine]",
    brief="Compare each lever alone. [--combine]",
)
@own_flag(
    "--verify-loss",
    type=click.IntRange(8, 1_000_000),
    metavar="STEPS",
    common=False,
    help="After the search, train this many steps with the current and the recommended settings and compare "
    "the losses; settings that reach a different loss are not recommended. [default: only the short windows "
    "of the search]",
)
@own_flag(
    "--keep-numerics",
    is_flag=True,
    common=False,
    help="Skip levers that may change numerical results: number formats, compilation, fused optimizers and "
    "others. [default: try them and compare the loss]",
)
def command(**arguments: Any) -> None:
    """Find the settings that make one configuration faster, within a budget.

    Tries the most promising levers on top of the best settings so far and confirms the winner in new
    launches. Gives no verdicts under torchrun or srun; use --launcher slurm for jobs. Examples:

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
