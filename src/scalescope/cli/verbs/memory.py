"""`scalescope memory`: what training holds in memory."""

from typing import Any

from scalescope.catalog.benchmarks.memory import BATCHES
from scalescope.cli.measuring import measure
from scalescope.cli.options import measuring_verb


@measuring_verb("memory", {"repeats": 1, "batch_size": ",".join(map(str, BATCHES))}, benchmark="memory")
def command(**arguments: Any) -> None:
    """Measure how much memory training takes, and find the largest batch that fits.

    Parameters, gradients, optimizer state, activations and the peak, beside their forecast; what sharding,
    bf16 or checkpointing would save. Example:

      scalescope memory --workload transformer --batch-size 1,2,4,8
    """
    from scalescope.studies.memory.memory import memory

    measure("memory", memory, arguments, benchmark="memory")
