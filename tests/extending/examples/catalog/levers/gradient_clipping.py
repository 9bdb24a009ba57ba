"""Card of the `gradient_clipping` lever."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog import cards
from scalescope.catalog.code_lines import Code, ScriptContext, code, statement
from scalescope.catalog.setting import Lever, setting
from scalescope.errors import BadInput


def _in_script(norm: float | None, context: ScriptContext) -> Code:
    if norm is None:
        return Code()
    return code(statement("gradients", f"torch.nn.utils.clip_grad_norm_(model.parameters(), {norm})"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientClipping:
    """Gradients are scaled down where their norm is too large."""

    clip_norm: float | None = setting(
        None,
        "Largest norm of all gradients together; none leaves them as they are.",
        low=1e-6,
        high=1e6,
        lever=Lever(tries=(1.0,), changes="the job", code=_in_script),
    )

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Refuse gradients that are scaled for fp16, and ranks that hold only a part of them."""
        if values["clip_norm"] is None:
            return
        if values["precision"] == "fp16":
            raise BadInput("clip_norm cannot be used with precision fp16; use bf16")
        if not cards.card("strategies", values["strategy"]).replicated:
            raise BadInput(f"clip_norm cannot be used with strategy {values['strategy']}; use ddp")
