"""`scalescope memory`: how much memory training takes."""

from typing import Any

from scalescope.cli.measuring import measure
from scalescope.cli.options import measuring_verb
from scalescope.studies.memory import MemoryStudy


@measuring_verb(MemoryStudy)
def command(**arguments: Any) -> None:
    """Measure how much memory training needs, and find the largest batch that fits.

    Shows parameters, gradients, optimizer state, activations and the peak, each with its forecast, and what
    sharding, bf16 or checkpointing would save. Examples:

      scalescope memory --workload transformer --batch-size 1,2,4,8
      scalescope memory --workload my.py:build --memory-limit 4GiB
    """
    measure(MemoryStudy(), arguments)
