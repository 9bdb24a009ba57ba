"""`scalescope tune`: which setting helps, really."""

import re
from typing import Any

import click

from scalescope.cli.measuring import measure
from scalescope.cli.options import measuring_verb
from scalescope.errors import BadInput

_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%?")


@measuring_verb("tune", {"repeats": 5, "budget": 600.0, "window": 3.0})
@click.option(
    "--levers",
    multiple=True,
    metavar="NAME[=VALUE][,...]",
    help="Settings to move; each tries the values worth trying, or the one given. [default: all]",
)
@click.option(
    "--threshold",
    default="3%",
    metavar="PERCENT",
    help="A difference worth having: smaller ones may be missed without a word. [default: 3%]",
)
@click.option("--combine", is_flag=True, help="Also search for levers that help together.")
def command(**arguments: Any) -> None:
    """Try performance levers around one configuration, and say which help.

    Every claim is measured in interleaved launches and survives the number of comparisons. As ranks of
    torchrun or srun, everything is launched once and nothing is claimed. Example:

      scalescope tune --world-size 2 --levers comm_hook,bucket_cap_mb --budget 5m
    """
    from scalescope.studies.tuning.tune import TuneOptions, levers_from, tune

    levers = levers_from(arguments["levers"] or ("all",))
    match = _PERCENT.fullmatch(arguments["threshold"].strip())
    if match is None or not 0.0 < float(match[1]) < 100.0:
        raise BadInput(f"--threshold: expected a share such as 3%, got {arguments['threshold']!r}")
    options = TuneOptions(levers=levers, threshold=float(match[1]) / 100.0, combine=arguments["combine"])
    combining = ("--combine",) if arguments["combine"] else ()
    words = ("--levers", ",".join(levers), "--threshold", f"{float(match[1]):g}%", *combining)
    measure("tune", tune, arguments, words=words, options=options)
