"""`scalescope scale`: how training scales over ranks."""

from typing import Any

from scalescope.cli.measuring import measure
from scalescope.cli.options import measuring_verb, no_waterfall
from scalescope.studies.scaling.scale import ScaleStudy


@measuring_verb(ScaleStudy)
@no_waterfall
def command(**arguments: Any) -> None:
    """Measure how training scales, and where the lost speed goes.

    Measures every --world-size with every --batch-size or --global-batch-size. Examples:

      scalescope scale --world-size 1,2,4 --batch-size 32,256
      scalescope scale --workload my.py:build --global-batch-size 512
      scalescope scale -- torchrun --nproc-per-node={world_size} train.py
    """
    measure(ScaleStudy(waterfall=arguments["waterfall"]), arguments)
