"""Card of the `accumulation` lever."""

from dataclasses import dataclass

from scalescope.catalog.code_lines import Code, ScriptContext
from scalescope.catalog.setting import Lever, setting


def _in_script(steps: int, context: ScriptContext) -> Code:
    if steps == 1:
        return Code()
    return Code(
        instead=f"call (loss / {steps}).backward() for {steps} batches, all but the last of them inside "
        "model.no_sync() where DDP wraps the model, and optimizer.step() after them"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """Several forward and backward passes for each exchange of gradients and step of the optimizer."""

    accumulation_steps: int = setting(
        1,
        "Batches whose gradients are summed before the exchange and the update: fewer exchanges, and "
        "batch_size times this many samples per step. global_batch_size stays the same and is split further.",
        low=1,
        high=100_000,
        lever=Lever(tries=(2, 4), needs=("ranks",), changes="the job", code=_in_script),
    )
