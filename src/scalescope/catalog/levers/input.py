"""Card of the `input` lever: how samples get to the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.setting import Lever, setting
from scalescope.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The data loader: who prepares batches, how far ahead, in which memory."""

    num_workers: int | None = setting(
        None,
        "Processes that prepare batches for a rank; 0 prepares them in the rank itself. auto is 0 for data "
        "sets and no loader at all for synthetic samples, which then wait on the device.",
        low=0,
        high=1024,
        none_word="auto",
        neutral=None,
        lever=Lever(tries=(0, 1, 2, 4), needs=("loader",)),
    )
    persistent_workers: bool = setting(
        False,
        "Keep the loader's processes from epoch to epoch instead of starting them anew.",
        neutral=False,
        lever=Lever(tries=(True,), needs=("workers",)),
    )
    prefetch_factor: int | None = setting(
        None,
        "Batches each of the loader's processes prepares ahead; none is PyTorch's own default (2).",
        low=1,
        high=10_000,
        neutral=None,
        lever=Lever(tries=(4, 8), needs=("workers",)),
    )

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """What only worker processes do needs some."""
        if not values["num_workers"]:
            for name in ("persistent_workers", "prefetch_factor"):
                if values[name]:
                    raise BadInput(f"{name} is about the loader's processes; --num-workers 2 starts two")
