"""`scalescope train`: one configuration, measured."""

from typing import Any

from scalescope.cli.measuring import measure
from scalescope.cli.options import measuring_verb


@measuring_verb("train", {"repeats": 1})
def command(**arguments: Any) -> None:
    """Measure how fast one configuration trains.

    Lists (--batch-size 32,256) measure each value. Example:

      scalescope train --world-size 2 --batch-size 256 --repeats 5
    """
    from scalescope.studies.train import train

    measure("train", train, arguments, every_placement=True)
