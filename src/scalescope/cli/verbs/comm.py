"""`scalescope comm`: how fast the network is."""

import re
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from scalescope.cli.help_pages import own_flag
from scalescope.cli.measuring import measure
from scalescope.cli.options import given_flags, measuring_verb
from scalescope.errors import BadInput
from scalescope.studies.comm import CommStudy, rate_from

_RANKS = re.compile(r"[1-9][0-9]{0,6}")


@measuring_verb(CommStudy)
@own_flag(
    "--min-busbw",
    metavar="RATE",
    help="Exit with code 8 if a collective's best bus bandwidth is below this rate (10GB/s).",
    brief="Exit with code 8 below this (10GB/s).",
)
@own_flag(
    "--json-nccl",
    type=click.Path(path_type=Path),
    help="Also write the results in nccl-tests' JSON layout.",
    brief="Also write nccl-tests' JSON layout.",
)
@own_flag(
    "--import",
    "import_file",
    in_file=False,
    brief="Read results of nccl-tests; measure nothing.",
    type=click.Path(path_type=Path),
    help="Read results of nccl-tests (JSON or table) instead of measuring.",
)
def command(**arguments: Any) -> None:
    """Measure the collectives that training uses, as nccl-tests does.

    Every result is checked element by element. Examples:

      scalescope comm --world-size 2 --collective all_reduce -e 32M
      scalescope comm --pairs
    """
    gate = rate_from(arguments["min_busbw"]) if arguments["min_busbw"] else None
    study = CommStudy(
        least_busbw=gate,
        nccl_json=arguments["json_nccl"],
        is_import=arguments["import_file"] is not None,
    )
    if arguments["import_file"] is not None:
        _import(study, arguments)
    measure(study, arguments)


def _import(study: CommStudy, arguments: dict[str, Any]) -> NoReturn:
    from scalescope.report.render.terminal import console, show
    from scalescope.studies.comm import import_nccl

    given = {name: values[0].text for name, values in given_flags(click.get_current_context()).items()}
    ranks = given.get("world_size")
    if ranks is not None and not _RANKS.fullmatch(ranks):
        raise BadInput(f"--world-size: expected the number of ranks the file was made on, got {ranks!r}")
    report = import_nccl(
        study,
        arguments["import_file"],
        given.get("output_dir"),
        int(ranks) if ranks else None,
        given.get("collective"),
    )
    show(report.sections, console(), verbose=arguments["verbose"])
    assert report.path is not None
    click.echo(f"\nResults: {report.path / 'results.json'}")
    sys.exit(report.exit_code)
