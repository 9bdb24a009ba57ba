"""Card of the `script` strategy: whatever the training command does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from scalescope.catalog.setting import Need, left_to_script
from scalescope.catalog.strategies.ddp import Ddp
from scalescope.catalog.traits import StrategyTraits
from scalescope.errors import BadInput

_DDP: tuple[Need, ...] = ("ranks", "ddp")
_REMOVABLE = ("ddp", "fsdp2")  # wrappers whose exchange can be taken away inside a running script


@dataclass(frozen=True, slots=True, kw_only=True)
class Script(StrategyTraits):
    """What the command does with its ranks; the settings change arguments of its DDP."""

    title: ClassVar[str | None] = "the script"
    plain_on_one_rank = True
    replicated = False
    evaluates = False
    ablations: ClassVar[tuple[str, ...]] = ("without_communication",)
    least_gpu_warmup_steps = 11

    bucket_cap_mb: float | None = left_to_script(Ddp, "bucket_cap_mb", not_tried=(None, 25.0), needs=_DDP)
    broadcast_buffers: bool | None = left_to_script(Ddp, "broadcast_buffers", not_tried=(True,), needs=_DDP)
    static_graph: bool | None = left_to_script(Ddp, "static_graph", not_tried=(False,), needs=_DDP)
    gradient_as_bucket_view: bool | None = left_to_script(
        Ddp, "gradient_as_bucket_view", not_tried=(False,), needs=_DDP
    )
    comm_hook: str = left_to_script(Ddp, "comm_hook", default="none", needs=_DDP)

    @classmethod
    def removable(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Communication, where launches so far show a wrapper that can do without, or nothing yet."""
        observed = settings.get("observed_wrapper")
        return cls.ablations if observed is None or observed in _REMOVABLE else ()

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Only a command has a script."""
        if values["workload"] != "command":
            raise BadInput("strategy script requires a training command; put it after --")
