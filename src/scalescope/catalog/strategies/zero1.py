"""Card of the `zero1` strategy."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from scalescope.catalog.code_lines import Code, ScriptContext
from scalescope.catalog.strategies.ddp import Ddp
from scalescope.catalog.traits import MemoryLayout
from scalescope.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero1(Ddp):
    """DDP with the optimizer's state cut over the ranks: each updates its part and sends it to the others."""

    title = "ZeRO-1"
    ablations: ClassVar[tuple[str, ...]] = ("without_communication",)  # updating also sends
    saving_layout = MemoryLayout(sharded=("optimizer",), keeps_gradients=True)

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """A stand-in's optimizer has no state to cut."""
        if values.get("stand_in"):
            raise BadInput(
                "--stand-in cannot be used with zero1, which shards the update that a stand-in skips; use ddp"
            )

    @staticmethod
    def code(context: ScriptContext) -> Code:
        """In words: the optimizer's class is its owner's."""
        return Code(
            instead="keep DDP, and create the optimizer with ZeroRedundancyOptimizer(model.parameters(), "
            "optimizer_class=CLASS, ...) from torch.distributed.optim, with your class and arguments"
        )

    @staticmethod
    def memory_layout(settings: Mapping[str, Any]) -> MemoryLayout:
        """DDP's, with a share of the optimizer's state."""
        return dataclasses.replace(Ddp.memory_layout(settings), sharded=("optimizer",))
