"""Card of the `single` strategy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.code_lines import Code, ScriptContext
from scalescope.catalog.traits import MemoryLayout, StrategyTraits
from scalescope.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Single(StrategyTraits):
    """One rank, no wrapper, no process group: the plain baseline."""

    wraps = False
    ablations = ("without_optimizer",)

    @staticmethod
    def code(context: ScriptContext) -> Code:
        """Nothing is to be put anywhere."""
        return Code(instead="remove the wrapper around the model, and the process group")

    @staticmethod
    def memory_layout(settings: Mapping[str, Any]) -> MemoryLayout:
        """One rank alone."""
        return MemoryLayout()

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """There is nothing in a plain loop that would keep two ranks together."""
        if values["world_size"] > 1:
            raise BadInput(f"strategy single runs on one rank; use ddp for {values['world_size']} ranks")
