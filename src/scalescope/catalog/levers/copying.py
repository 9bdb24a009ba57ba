"""Card of the `copying` lever: how batches get to the GPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.code_lines import MAP_TENSORS, Code, ScriptContext, argument, code, statement
from scalescope.catalog.levers.input import loader_argument
from scalescope.catalog.setting import ExpectedEffect, Lever, setting
from scalescope.errors import BadInput, CannotRun

_H200 = "docs/measurements/2026-11-15-h200-levers.md"
_COPIED_AHEAD = '''\
def copied_ahead(batches):
    """Copies the next batch on another stream while the current one is used."""
    copies, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)

    def begin(batch):
        with torch.cuda.stream(copies):
            return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)

    def claim(tensor):
        tensor.record_stream(current)  # otherwise its memory could be reused too early
        return tensor

    batches = iter(batches)
    coming = begin(next(batches))
    for batch in batches:
        current.wait_stream(copies)
        ready, coming = coming, begin(batch)
        yield map_tensors(claim, ready)
    current.wait_stream(copies)
    yield map_tensors(claim, coming)'''


def _not_blocking(is_on: bool, context: ScriptContext) -> Code:
    return code(argument("copy", "non_blocking", True)) if is_on else Code()


def _ahead(is_on: bool, context: ScriptContext) -> Code:
    if not is_on:
        return Code()
    return code(
        statement("definitions", MAP_TENSORS),
        statement("definitions", _COPIED_AHEAD),
        statement("loop", "copied_ahead"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """Copies from the host to the GPU, hidden behind kernels or not."""

    pin_memory: bool = setting(
        False,
        "Prepare batches in page-locked memory, which makes copies to the GPU faster.",
        lever=Lever(
            tries=(True,),
            needs=("cuda", "loader"),
            in_bundle=(True,),
            expects=(ExpectedEffect(factors={"copy": 0.4}, source=_H200),),
            code=loader_argument("pin_memory"),
        ),
    )
    non_blocking: bool = setting(
        False,
        "Copy batches to the GPU asynchronously; only works from page-locked memory (--pin-memory).",
        lever=Lever(
            tries=(True,),
            needs=("cuda", "loader"),
            in_bundle=(True,),
            expects=(
                ExpectedEffect(
                    factors={"copy": 1.0},
                    company=("pin_memory", (True,)),
                    together={"copy": 0.95},
                    source=_H200,
                ),
            ),
            code=_not_blocking,
        ),
    )
    prefetch_stream: bool = setting(
        False,
        "Copy the next batch on a separate CUDA stream during the current step.",
        lever=Lever(
            tries=(True,),
            needs=("cuda", "loader"),
            expects=(
                ExpectedEffect(
                    factors={"copy": 1.0},
                    company=("pin_memory", (True,)),
                    together={"copy": 0.95},
                    source=_H200,
                ),
            ),
            code=_ahead,
        ),
    )

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """There is nothing to copy on the CPU, or where batches are already on the device."""
        asked = [name for name in ("pin_memory", "non_blocking", "prefetch_stream") if values[name]]
        if asked and values["device"] == "cpu":
            raise CannotRun(f"{asked[0]} requires a GPU; remove it to run on the CPU")
        if asked and values["data"] == "synthetic" and values["num_workers"] is None:
            raise BadInput(
                f"{asked[0]} requires a data loader, and synthetic batches are already on the GPU; "
                "add --num-workers 2"
            )
