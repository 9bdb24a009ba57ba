"""Card of the `pipeline` strategy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from scalescope.catalog.code_lines import Code, ScriptContext
from scalescope.catalog.setting import setting
from scalescope.catalog.traits import StrategyTraits
from scalescope.errors import BadInput

_PER_RANK = 2  # microbatches per rank by default: idle for (n - 1) / (3 n - 1) of the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(StrategyTraits):
    """Each rank holds some of the model's blocks; microbatches pass through them, gradients pass back."""

    least_ranks = 2
    replicated = False
    evaluates = False
    divides_batch = True
    has_separate_backward = False

    schedule: str = setting(
        "1f1b",
        "gpipe runs all forward passes, then all backward passes; 1f1b starts each backward pass as early as "
        "possible and keeps fewer activations.",
        choices=("gpipe", "1f1b"),
    )
    microbatches: int | None = setting(
        None,
        "Number of microbatches per batch. More of them leave ranks less idle but compute less efficiently; "
        "auto is the largest divisor of the batch up to two per rank.",
        low=1,
        high=2**31,
        none_word="auto",
    )

    @staticmethod
    def code(context: ScriptContext) -> Code:
        """In words: how a model is cut is its owner's to say."""
        return Code(
            instead="cut the model into stages and run them with a schedule of torch.distributed.pipelining"
        )

    @staticmethod
    def replicas(world_size: int) -> int:
        """However many ranks, they work on one batch."""
        return 1

    @staticmethod
    def parts_of_a_step(batch_size: int, world_size: int, settings: Mapping[str, Any]) -> int | None:
        """Into how many microbatches a batch is cut."""
        return parts_of(batch_size, settings.get("microbatches"), world_size)

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Refuse what leaves nothing to pass on, or cannot be cut."""
        ranks = values["world_size"]
        if ranks < 2:
            raise BadInput("pipeline requires at least 2 ranks; use --world-size 2")
        if values.get("accumulation_steps", 1) > 1:
            raise BadInput("accumulation_steps cannot be used with pipeline; use --microbatches")
        if values.get("precision") == "fp16":  # it scales the loss between forward and backward
            raise BadInput(
                "precision fp16 cannot be used with pipeline, which cannot scale gradients; use bf16"
            )
        if values.get("stand_in"):
            raise BadInput("--stand-in cannot be used with pipeline, which has no whole replicas; use ddp")
        _check_parts(values["global_batch_size"] or values["batch_size"], values, ranks)


def _check_parts(batch: int, values: Mapping[str, Any], ranks: int) -> None:
    asked = values["microbatches"]
    if asked is not None and batch % asked:
        near = parts_of(batch, asked, ranks)
        raise BadInput(f"a batch of {batch} cannot be split into {asked} equal microbatches; use {near}")
    parts = parts_of(batch, asked, ranks)
    if values["schedule"] == "1f1b" and parts < ranks:
        raise BadInput(
            f"schedule 1f1b requires a microbatch per rank ({ranks}), and a batch of {batch} gives {parts}; "
            "use --schedule gpipe"
        )


def parts_of(batch_size: int, asked: int | None, ranks: int) -> int:
    """Into how many microbatches a batch is cut: its largest divisor up to what was asked for."""
    most = min(asked or _PER_RANK * ranks, batch_size)
    return next(parts for parts in range(most, 0, -1) if batch_size % parts == 0)


def balanced_cuts(costs: Sequence[float], count: int) -> list[int]:
    """Edges of `count` runs of costs, none empty, whose largest sum is the smallest possible."""
    upto = [0, *accumulate(costs)]
    # best[end]: (largest sum, edges) of the first `end` costs in as many runs as were made so far
    best: dict[int, tuple[float, list[int]]] = {end: (upto[end], [0, end]) for end in range(1, len(upto))}
    for runs in range(2, count + 1):
        best = {
            end: min(
                (max(best[cut][0], upto[end] - upto[cut]), [*best[cut][1], end])
                for cut in range(runs - 1, end)
            )
            for end in range(runs, len(upto))
        }
    return best[len(costs)][1]
