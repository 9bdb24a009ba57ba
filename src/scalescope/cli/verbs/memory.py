"""`scalescope memory`: how much memory training takes."""

from typing import Any

from scalescope.catalog.benchmarks.memory import BATCHES
from scalescope.cli.measuring import measure
from scalescope.cli.options import measuring_verb
from scalescope.studies.memory.memory import MemoryStudy


@measuring_verb(MemoryStudy, {"batch_size": ",".join(map(str, BATCHES))})
def command(**arguments: Any) -> None:
    """Measure how much memory training takes, and find the largest batch that fits.

    Shows parameters, gradients, optimizer state, activations and the peak, each next to its forecast, and
    what sharding, bf16 or checkpointing would save. Example:

      scalescope memory --workload transformer --batch-size 1,2,4,8
    """
    measure(MemoryStudy(), arguments)
