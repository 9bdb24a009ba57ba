"""`scalescope drift`: whether training gets slower over time."""

from typing import Any

from scalescope.cli.measuring import measure
from scalescope.cli.options import measuring_verb
from scalescope.studies.drift import Drift


@measuring_verb(Drift)
def command(**arguments: Any) -> None:
    """Measure one configuration many times, to see whether it gets slower. Example:

    scalescope drift --world-size 2 --repeats 20
    """
    measure(Drift(), arguments)
