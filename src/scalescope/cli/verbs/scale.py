"""`scalescope scale`: how training scales over ranks."""

from typing import Any

from scalescope.cli.measuring import measure
from scalescope.cli.options import SWEEP_TEXT, measuring_verb, no_waterfall


@measuring_verb("scale", {"repeats": 5, **SWEEP_TEXT})
@no_waterfall
def command(**arguments: Any) -> None:
    """Measure how training scales, and where the rest goes.

    Sweeps --world-size (default 1, 2, 4 ... to what the machine has) against --batch-size (per rank, weak
    scaling) or --global-batch-size (strong scaling). Example:

      scalescope scale --world-size 1,2 --batch-size 32,256
    """
    from scalescope.studies.scaling.scale import scale

    words = () if arguments["waterfall"] else ("--no-waterfall",)
    measure("scale", scale, arguments, words=words, waterfall=arguments["waterfall"])
