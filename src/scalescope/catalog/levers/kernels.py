"""Card of the `kernels` lever."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.code_lines import Code, ScriptContext, code, statement
from scalescope.catalog.setting import ExpectedEffect, Lever, setting
from scalescope.errors import CannotRun

_H200 = "docs/measurements/2026-11-15-h200-levers.md"
_BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}


def _timed(is_on: bool, context: ScriptContext) -> Code:
    return code(statement("start", "torch.backends.cudnn.benchmark = True")) if is_on else Code()


def _attention(kernel: str, context: ScriptContext) -> Code:
    if kernel == "auto":
        return Code()
    return code(
        statement("imports", "from torch.nn.attention import SDPBackend, sdpa_kernel"),
        statement("forward", f"sdpa_kernel(SDPBackend.{_BACKENDS[kernel]})"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Which of several kernels for the same operation is used."""

    cudnn_benchmark: bool = setting(
        False,
        "Let cuDNN time its convolution kernels at first use and keep the fastest; requires constant shapes.",
        lever=Lever(
            tries=(True,),
            needs=("cuda", "convolutions"),
            changes="rounding",
            expects=(ExpectedEffect(factors={"convolutions": 0.95}, source=_H200),),
            code=_timed,
        ),
    )
    attention: str = setting(
        "auto",
        "Attention kernel: flash and cudnn require half precision; math is the unfused implementation.",
        choices=("auto", "flash", "efficient", "cudnn", "math"),
        lever=Lever(
            tries=("flash", "efficient", "cudnn", "math"),
            needs=("cuda", "attention"),
            changes="rounding",
            is_compiled_in=True,
            expects=(
                ExpectedEffect(value="math", factors={"kernels": 1.2}, source=_H200),
                ExpectedEffect(factors={"kernels": 1.0}, source="auto already takes the fastest"),
            ),
            code=_attention,
        ),
    )

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Two of the kernels are a GPU's alone, and two have no version for fp32 there."""
        halved = values["precision"] in ("bf16", "fp16")
        if values["device"] == "cuda" and values["attention"] in ("flash", "cudnn") and not halved:
            raise CannotRun(
                f"attention {values['attention']} requires --precision bf16 or fp16 on a GPU; "
                "auto then uses it"
            )
        if values["device"] == "cpu" and values["attention"] in ("efficient", "cudnn"):
            raise CannotRun(
                f"attention {values['attention']} requires a CUDA GPU; flash and math work on the CPU"
            )
