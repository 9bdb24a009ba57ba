"""Card of the `script` strategy: whatever a training command does by itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from scalescope.catalog.code_lines import Code, ScriptContext
from scalescope.catalog.setting import ExpectedEffect, Lever, setting
from scalescope.catalog.strategies.ddp import bucket_view_code, comm_hook_code, wrapper_argument
from scalescope.catalog.traits import StrategyTraits
from scalescope.errors import BadInput

_LINKS = "docs/levers/communication.md"
_REMOVABLE = ("ddp", "fsdp2")  # wrappers whose exchange can be taken away inside a running script


def _ddp_argument(code: Callable[[Any, ScriptContext], Code], **rest: Any) -> Lever:
    """A lever of the script's DDP; without a value, nothing is changed in the script."""

    def code_of(value: Any, context: ScriptContext) -> Code:
        return Code() if value is None else code(value, context)

    return Lever(needs=("ranks", "ddp"), code=code_of, **rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script(StrategyTraits):
    """What the command does by itself with its ranks; its settings change arguments of its DDP."""

    title: ClassVar[str | None] = "the script"
    plain_on_one_rank = True
    replicated = False
    evaluates = False
    ablations: ClassVar[tuple[str, ...]] = ("without_communication",)
    least_gpu_warmup_steps = 11

    bucket_cap_mb: float | None = setting(
        None,
        "Size at which the script's DDP closes a gradient bucket, in MiB.",
        low=0.001,
        high=1e6,
        none_word="script",
        lever=_ddp_argument(
            wrapper_argument("bucket_cap_mb"),
            tries=(1.0, 5.0, 100.0),
            changes="rounding",
            expects=(ExpectedEffect(factors={"communication": 0.98}, source=_LINKS),),
        ),
    )
    broadcast_buffers: bool | None = setting(
        None,
        "Whether the script's DDP broadcasts buffers before every forward.",
        lever=_ddp_argument(
            wrapper_argument("broadcast_buffers"),
            tries=(False,),
            changes="rounding",
            expects=(ExpectedEffect(factors={"communication": 0.95}, source="one exchange less per step"),),
        ),
    )
    static_graph: bool | None = setting(
        None,
        "Promise the script's DDP that the graph never changes.",
        lever=_ddp_argument(
            wrapper_argument("static_graph"),
            tries=(True,),
            expects=(ExpectedEffect(factors={"kernels": 0.98}, source="less work per step"),),
        ),
    )
    gradient_as_bucket_view: bool | None = setting(
        None,
        "Let gradients of the script's DDP live inside its buckets.",
        lever=_ddp_argument(
            bucket_view_code,
            tries=(True,),
            expects=(ExpectedEffect(factors={"kernels": 0.98}, source="saves a copy per step"),),
        ),
    )
    comm_hook: str = setting(
        "none",
        "Send the gradients of the script's DDP in 16 bits; none leaves what the script does.",
        choices=("none", "fp16", "bf16"),
        lever=_ddp_argument(
            comm_hook_code,
            tries=("fp16", "bf16"),
            changes="rounding",
            expects=(ExpectedEffect(factors={"communication": 0.55, "kernels": 1.03}, source=_LINKS),),
        ),
    )

    @classmethod
    def removable(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Communication, where launches so far show a wrapper that can do without, or nothing yet."""
        observed = settings.get("observed_wrapper")
        return cls.ablations if observed is None or observed in _REMOVABLE else ()

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Only a command has a script."""
        if values["workload"] != "command":
            raise BadInput("strategy script is for commands: put yours after --")
