"""`scalescope predict`: what a run would do on other numbers of ranks, from what is stored."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalescope.cli.help_pages import VerbCommand
from scalescope.cli.outputs import output_options, show_and_write
from scalescope.errors import BadInput

if TYPE_CHECKING:
    from scalescope.analysis.prediction.answer import PredictionRequest
    from scalescope.analysis.prediction.setup import RankLayout
    from scalescope.studies.prediction import PredictReport

_MOST_RANKS = 1_000_000
_MOST_SIZES = 256
_NEWEST = Path("runs/latest")


class FiniteRange(click.FloatRange):
    """A number within bounds; click alone accepts `nan` and `inf` as numbers."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


@click.command("predict", cls=VerbCommand)
@click.argument("run", required=False, type=click.Path(path_type=Path), metavar="RUN")
@click.option(
    "--world-size",
    "world_sizes",
    metavar="N[,...]",
    help="Numbers of ranks. [default: those measured, and doublings up to 64]",
)
@click.option(
    "--network",
    metavar="NAME|PATH",
    help="Source of collective times: a name such as nvlink4, a run, nccl-tests' output or a curve.json. "
    "[default: RUN]",
)
@click.option("--gpus-per-node", metavar="N", type=click.IntRange(1), help="Ranks per node.")
@click.option("--nics-per-node", metavar="N", type=click.IntRange(1), help="Network cards per node.")
@click.option("--batch-size", metavar="N", type=click.IntRange(1), help="A different batch size per rank.")
@click.option("--comm-hook", type=click.Choice(["none", "fp16", "bf16"]), help="Send gradients in 16 bits.")
@click.option("--accumulation-steps", metavar="N", type=click.IntRange(1), help="Micro-batches per step.")
@click.option("--bucket-cap-mb", metavar="MIB", type=FiniteRange(0.001), help="Size of DDP's buckets.")
@click.option(
    "--strategy",
    metavar="NAME",
    type=click.Choice(["ddp", "zero1", "fsdp", "pipeline"]),
    help="ddp, zero1, fsdp or pipeline.",
)
@click.option(
    "--gpu-hour-price",
    metavar="PRICE",
    type=FiniteRange(0.0),
    help="Also show what samples cost.",
)
@click.option("--what-if", "what_if", is_flag=True, help="Rank individual changes by predicted gain.")
@click.option("--ledger", is_flag=True, help="Show how far off earlier predictions were.")
@output_options
@click.option("-v", "--verbose", is_flag=True, help="Also show the interval of every figure.")
def command(**arguments: Any) -> None:
    """Predict step time, efficiency and memory of a run (default: the newest) on other numbers of ranks.

    Requires the profile of one rank, which train and scale record, and times of collectives, which scale and
    comm measure or --network supplies. Measures nothing and does not need torch. Examples:

      scalescope predict runs/latest --world-size 2,4,8,16,64
      scalescope predict runs/train --network nvlink4 --gpus-per-node 8 --what-if
      scalescope predict --ledger
    """
    report = _report(arguments)
    for warning in report.warnings:
        click.echo(warning, err=True)
    source = "the ledger" if arguments["ledger"] else str(arguments["run"] or _NEWEST)
    show_and_write(report, arguments, f"scalescope: predicted from {Path(source).name}", source)


def _report(arguments: dict[str, Any]) -> "PredictReport":
    from scalescope.studies.prediction import predict, show_ledger

    if arguments["ledger"] and arguments["run"] is None:
        return show_ledger()
    if arguments["ledger"]:
        raise BadInput("--ledger shows all runs and cannot be used with RUN")
    return predict(arguments["run"] or _NEWEST, _request(arguments), arguments["network"])


def _request(arguments: dict[str, Any]) -> "PredictionRequest":
    from scalescope.analysis.prediction.answer import PredictionRequest

    return PredictionRequest(
        world_sizes=_world_sizes(arguments["world_sizes"]),
        layout=_layout(arguments["gpus_per_node"], arguments["nics_per_node"]),
        batch=arguments["batch_size"],
        strategy=arguments["strategy"],
        comm_hook=arguments["comm_hook"],
        accumulation_steps=arguments["accumulation_steps"],
        bucket_cap_mb=arguments["bucket_cap_mb"],
        gpu_hour_price=arguments["gpu_hour_price"],
        what_if=arguments["what_if"],
    )


def _layout(gpus: int | None, cards: int | None) -> "RankLayout | None":
    from scalescope.analysis.prediction.setup import RankLayout

    if gpus is None and cards is not None:
        raise BadInput("--nics-per-node requires --gpus-per-node")
    return None if gpus is None else RankLayout(ranks_per_node=gpus, cards_per_node=cards or 1)


def _world_sizes(text: str | None) -> tuple[int, ...]:
    sizes = []
    for word in () if text is None else text.split(","):
        is_number = word.strip().isdecimal() and len(word.strip()) <= len(str(_MOST_RANKS))
        if not is_number or not 1 <= int(word) <= _MOST_RANKS:
            raise BadInput(
                f"--world-size: expected numbers up to {_MOST_RANKS:,} such as 2,4,8, got {word.strip()!r}"
            )
        sizes.append(int(word))
    if len(set(sizes)) > _MOST_SIZES:
        raise BadInput(f"--world-size: expected at most {_MOST_SIZES} numbers, got {len(set(sizes)):,}")
    return tuple(sizes)
