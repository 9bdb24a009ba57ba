"""Card of the `copying` lever: how batches get to the GPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.setting import ExpectedEffect, Lever, setting
from scalescope.errors import BadInput, CannotRun

_H200 = "docs/measurements/2026-11-15-h200-levers.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """Copies from the host to the GPU, hidden behind kernels or not."""

    pin_memory: bool = setting(
        False,
        "Prepare batches in page-locked memory, from which copies to the GPU are faster.",
        neutral=False,
        lever=Lever(
            tries=(True,),
            needs=("cuda", "loader"),
            expects=(ExpectedEffect(factors={"load": 0.65}, source=_H200),),
        ),
    )
    non_blocking: bool = setting(
        False,
        "Copy batches to the GPU asynchronously; only page-locked memory allows it.",
        neutral=False,
        lever=Lever(
            tries=(True,),
            needs=("cuda", "loader"),
            expects=(
                ExpectedEffect(
                    factors={"load": 1.0},
                    company=("pin_memory", (True,)),
                    together={"load": 0.95},
                    source=_H200,
                ),
            ),
        ),
    )
    prefetch_stream: bool = setting(
        False,
        "Copy the next batch on a separate CUDA stream while the current one is computed.",
        neutral=False,
        lever=Lever(
            tries=(True,),
            needs=("cuda", "loader"),
            expects=(
                ExpectedEffect(
                    factors={"load": 1.0},
                    company=("pin_memory", (True,)),
                    together={"load": 0.95},
                    source=_H200,
                ),
            ),
        ),
    )

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """There is nothing to copy on the CPU, or where batches are already on the device."""
        asked = [name for name in ("pin_memory", "non_blocking", "prefetch_stream") if values[name]]
        if asked and values["device"] == "cpu":
            raise CannotRun(f"{asked[0]} requires a GPU; leave it out for a run on the CPU")
        if asked and values["data"] == "synthetic" and values["num_workers"] is None:
            raise BadInput(
                f"{asked[0]} requires a data loader, and synthetic batches are already on the GPU; "
                "add --num-workers 2"
            )
