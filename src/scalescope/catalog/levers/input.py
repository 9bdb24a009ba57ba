"""Card of the `input` lever: how samples get to the model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.code_lines import Code, ScriptContext, argument, code
from scalescope.catalog.setting import ExpectedEffect, Lever, setting
from scalescope.errors import BadInput


def loader_argument(name: str) -> Callable[[bool | int | None, ScriptContext], Code]:
    """A setting that is the keyword argument of that name; without a value, nothing."""

    def code_of(value: bool | int | None, context: ScriptContext) -> Code:
        return Code() if value is None else code(argument("loader", name, value))

    return code_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The data loader: which processes prepare batches, and how far ahead."""

    num_workers: int | None = setting(
        None,
        "DataLoader worker processes per rank; 0 loads in the rank itself. auto is 0 for data sets, and no "
        "loader for synthetic samples, which then stay on the device.",
        low=0,
        high=1024,
        none_word="auto",
        lever=Lever(
            tries=(1, 2, 4, 8, 12, 16),
            needs=("loader",),
            sets_processes=True,
            in_bundle=(1, 2, 4, 8, 12, 16),
            code=loader_argument("num_workers"),
        ),
    )
    persistent_workers: bool = setting(
        False,
        "Keep the DataLoader workers between epochs instead of starting new ones.",
        lever=Lever(
            tries=(True,),
            needs=("workers",),
            in_bundle=(True,),
            expects=(
                ExpectedEffect(factors={"prepare": 1.0}, source="only the beginning of an epoch is shorter"),
            ),
            code=loader_argument("persistent_workers"),
        ),
    )
    prefetch_factor: int | None = setting(
        None,
        "Batches that each DataLoader worker prefetches; none is PyTorch's default (2).",
        low=1,
        high=10_000,
        lever=Lever(
            tries=(4, 8),
            needs=("workers",),
            expects=(
                ExpectedEffect(factors={"prepare": 0.98}, source="evens out batches of different length"),
            ),
            code=loader_argument("prefetch_factor"),
        ),
    )

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """What only worker processes do needs some."""
        if not values["num_workers"]:
            for name in ("persistent_workers", "prefetch_factor"):
                if values[name]:
                    raise BadInput(f"{name} requires loader processes; add --num-workers 2")
