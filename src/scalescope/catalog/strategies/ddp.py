"""Card of the `ddp` strategy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from scalescope.catalog.code_lines import Code, CodeLine, ScriptContext, argument, code, statement
from scalescope.catalog.setting import ExpectedEffect, Lever, setting
from scalescope.catalog.traits import MemoryLayout, StrategyTraits

_LINKS = "docs/levers/communication.md"
_WORK = "DDP then copies gradients, or looks through the graph, once more per step"
_HOOKS = {"fp16": "default_hooks.fp16_compress_hook", "bf16": "default_hooks.bf16_compress_hook"}
# PyTorch's own hook for bf16 is for NCCL alone.
_SEND_BF16 = '''\
def send_bf16(group, bucket):
    """Sends gradients in 16 bits."""
    full = bucket.buffer()
    half = full.to(torch.bfloat16).div_(dist.get_world_size())

    def restore(done):
        full.copy_(done.value()[0])
        return full

    return dist.all_reduce(half, async_op=True).get_future().then(restore)'''


def _wrapper_argument(name: str) -> Callable[[bool | float | None, ScriptContext], Code]:
    """A setting that is the keyword argument of that name."""

    def code_of(value: bool | float | None, context: ScriptContext) -> Code:
        return code(argument("wrapper", name, value))

    return code_of


def _bucket_view_code(is_on: bool, context: ScriptContext) -> Code:
    """Gradients that are set to None leave their buckets, which costs the copy that views save."""
    return code(
        argument("wrapper", "gradient_as_bucket_view", is_on), argument("clear", "set_to_none", not is_on)
    )


def _comm_hook_code(precision: str, context: ScriptContext) -> Code:
    """The hook that sends gradients in 16 bits."""
    if precision == "none":
        return Code()
    lines: tuple[CodeLine, ...] = (
        statement("imports", "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks"),
        statement("wrapped", f"model.register_comm_hook(None, {_HOOKS[precision]})"),
    )
    if precision == "bf16" and context.device == "cpu":
        lines = (
            statement("imports", "import torch.distributed as dist"),
            statement("definitions", _SEND_BF16),
            statement("wrapped", "model.register_comm_hook(None, send_bf16)"),
        )
    return code(*lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddp(StrategyTraits):
    """PyTorch's DistributedDataParallel: every rank a replica, gradients averaged in buckets."""

    title: ClassVar[str | None] = "DDP"
    ablations: ClassVar[tuple[str, ...]] = ("without_communication", "without_optimizer")
    all_reduces_gradients = True
    # In its first ten iterations DDP takes times of its own, for which the host waits for the device.
    least_gpu_warmup_steps = 11

    bucket_cap_mb: float | None = setting(
        50.0,
        "Size in MiB at which a gradient bucket is sent. Large buckets use the network better, small ones "
        "start earlier; none keeps PyTorch's default (25, the first bucket 1).",
        low=0.001,
        high=1e6,
        lever=Lever(
            tries=(None, 1.0, 5.0, 25.0, 100.0),
            is_compiled_in=True,
            needs=("ranks",),
            changes="rounding",
            expects=(ExpectedEffect(factors={"communication": 0.98}, source=_LINKS),),
            code=_wrapper_argument("bucket_cap_mb"),
        ),
    )
    broadcast_buffers: bool = setting(
        False,
        "Broadcast buffers (batch-norm statistics) from rank 0 before each forward pass.",
        lever=Lever(
            tries=(False, True),
            needs=("ranks",),
            changes="rounding",
            expects=(
                ExpectedEffect(
                    value=True, factors={"communication": 1.05}, source="one more exchange per step"
                ),
                ExpectedEffect(
                    value=False, factors={"communication": 0.95}, source="one exchange fewer per step"
                ),
            ),
            code=_wrapper_argument("broadcast_buffers"),
        ),
    )
    static_graph: bool = setting(
        True,
        "Assume that the graph never changes, so DDP can skip work in each step.",
        lever=Lever(
            tries=(False, True),
            needs=("ranks",),
            expects=(
                ExpectedEffect(value=False, factors={"kernels": 1.02}, source=_WORK),
                ExpectedEffect(value=True, factors={"kernels": 0.98}, source=_WORK),
            ),
            code=_wrapper_argument("static_graph"),
        ),
    )
    gradient_as_bucket_view: bool = setting(
        True,
        "Let gradients live inside the buckets: saves a copy and the memory for it.",
        lever=Lever(
            tries=(False, True),
            needs=("ranks",),
            expects=(
                ExpectedEffect(value=False, factors={"kernels": 1.02}, source=_WORK),
                ExpectedEffect(value=True, factors={"kernels": 0.98}, source=_WORK),
            ),
            code=_bucket_view_code,
        ),
    )
    find_unused_parameters: bool = setting(
        False,
        "Search for parameters without a gradient in each step; costs a graph traversal and an exchange.",
        lever=Lever(
            tries=(True,),
            needs=("ranks",),
            expects=(
                ExpectedEffect(factors={"kernels": 1.05}, source="walks through the graph in every step"),
            ),
            code=_wrapper_argument("find_unused_parameters"),
        ),
    )
    comm_hook: str = setting(
        "none",
        "Send gradients in 16 bits: half the traffic, two conversions and a small rounding error.",
        choices=("none", "fp16", "bf16"),
        lever=Lever(
            tries=("fp16", "bf16"),
            needs=("ranks",),
            changes="rounding",
            expects=(ExpectedEffect(factors={"communication": 0.55, "kernels": 1.03}, source=_LINKS),),
            code=_comm_hook_code,
        ),
    )

    @staticmethod
    def code(context: ScriptContext) -> Code:
        """The wrapper."""
        devices = "[device.index]" if context.device == "cuda" else "None"
        return code(
            statement("imports", "from torch.nn.parallel import DistributedDataParallel"),
            CodeLine(part="wrapper", argument="device_ids", text=devices),
        )

    @staticmethod
    def memory_layout(settings: Mapping[str, Any]) -> MemoryLayout:
        """Buckets hold a second copy of all gradients, unless gradients live inside them.

        On a GPU the buckets of the first step were seen to stay beside those that replace them.
        """
        return MemoryLayout(
            keeps_gradients=True,
            copies_gradients=not settings.get("gradient_as_bucket_view"),
            keeps_first_buckets=settings.get("device") == "cuda"
            and not settings.get("find_unused_parameters"),
        )
