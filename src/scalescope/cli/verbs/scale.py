"""`scalescope scale`: how training scales over ranks."""

from typing import Any

from scalescope.cli.measuring import measure
from scalescope.cli.options import SWEEP_TEXT, measuring_verb, no_waterfall
from scalescope.studies.scaling.scale import ScaleStudy


@measuring_verb(ScaleStudy, SWEEP_TEXT)
@no_waterfall
def command(**arguments: Any) -> None:
    """Measure how training scales, and where the lost speed goes.

    Sweeps --world-size (default 1, 2, 4 ... to what the machine has) against --batch-size (per rank, weak
    scaling) or --global-batch-size (strong scaling). Example:

      scalescope scale --world-size 1,2 --batch-size 32,256
    """
    measure(ScaleStudy(waterfall=arguments["waterfall"]), arguments)
