"""Card of the `copying` lever: how batches get to the GPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.setting import Lever, setting
from scalescope.errors import BadInput, CannotRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """Copies from the host to the GPU, hidden behind kernels or not."""

    pin_memory: bool = setting(
        False,
        "Prepare batches in page-locked memory, from which a GPU copies faster.",
        neutral=False,
        lever=Lever(tries=(True,), needs=("cuda", "loader")),
    )
    non_blocking: bool = setting(
        False,
        "Let the host go on while a batch is copied; only page-locked memory allows it.",
        neutral=False,
        lever=Lever(tries=(True,), needs=("cuda", "loader")),
    )
    prefetch_stream: bool = setting(
        False,
        "Copy the next batch on a CUDA stream of its own while the current one is computed.",
        neutral=False,
        lever=Lever(tries=(True,), needs=("cuda", "loader")),
    )

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """There is nothing to copy on the CPU, nor where batches wait on the device."""
        asked = [name for name in ("pin_memory", "non_blocking", "prefetch_stream") if values[name]]
        if asked and values["device"] == "cpu":
            raise CannotRun(f"{asked[0]} is about copies to a GPU; there is none in a run on the CPU")
        if asked and values["data"] == "synthetic" and values["num_workers"] is None:
            raise BadInput(f"{asked[0]}: synthetic batches wait on the GPU; --num-workers 2 makes a loader")
