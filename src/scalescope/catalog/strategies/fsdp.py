"""Card of the `fsdp` strategy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.code_lines import Code, ScriptContext
from scalescope.catalog.setting import setting
from scalescope.catalog.traits import MemoryLayout, StrategyTraits
from scalescope.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Fsdp(StrategyTraits):
    """PyTorch's fully_shard: parameters, gradients and optimizer state cut over the ranks."""

    title = "FSDP"
    replicated = False
    ablations = ("without_communication", "without_optimizer")
    work_settings = ("fsdp_param_dtype",)
    saving_layout = MemoryLayout(
        sharded=("parameters", "gradients", "optimizer"), gathers="block", is_upper_bound=True
    )

    reshard_after_forward: bool | None = setting(
        None,
        "Free gathered parameters after the forward pass and gather them again for the backward pass: "
        "less memory, 50 % more traffic. auto is PyTorch's default: all blocks except the root, whose "
        "parameters the backward pass needs first.",
        none_word="auto",
    )
    fsdp_param_dtype: str = setting(
        "fp32",
        "Number format of gathered parameters and of compute; gradients are summed in fp32.",
        choices=("fp32", "bf16"),
    )

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Refuse a stand-in, which has no blocks whose parameters could be gathered."""
        if values.get("stand_in"):
            raise BadInput(
                "--stand-in cannot be used with fsdp, which gathers parameters block by block; use ddp"
            )

    @staticmethod
    def code(context: ScriptContext) -> Code:
        """In words: which blocks a model has is its owner's to say."""
        return Code(
            instead="call fully_shard (torch.distributed.fsdp) on each block of the model, then on the "
            "model, instead of DDP and before the optimizer is made"
        )

    @staticmethod
    def memory_layout(settings: Mapping[str, Any]) -> MemoryLayout:
        """At most: every state is cut; blocks are whole while they compute, or from then on."""
        return MemoryLayout(
            sharded=("parameters", "gradients", "optimizer"),
            gathers="model" if settings.get("reshard_after_forward") is False else "block",
            gathers_16_bit=settings.get("fsdp_param_dtype") == "bf16",
            is_upper_bound=True,
        )
