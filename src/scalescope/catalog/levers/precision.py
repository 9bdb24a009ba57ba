"""Card of the `precision` lever."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.code_lines import Code, ScriptContext, code, statement
from scalescope.catalog.setting import ExpectedEffect, Lever, setting
from scalescope.errors import CannotRun

_H200 = "docs/measurements/2026-11-15-h200-levers.md"
_TF32 = code(
    statement("start", 'torch.set_float32_matmul_precision("high")'),
    statement("start", "torch.backends.cudnn.allow_tf32 = True"),
)


def _in_script(precision: str, context: ScriptContext) -> Code:
    """Autocast around the forward pass; fp16 also scales the loss to keep small gradients."""
    device = context.device
    if precision == "bf16":
        return code(statement("forward", f'torch.autocast("{device}", dtype=torch.bfloat16)'))
    if precision == "fp16":
        return code(
            statement("before_loop", f'scaler = torch.amp.GradScaler("{device}")'),
            statement("forward", f'torch.autocast("{device}", dtype=torch.float16)'),
            statement("backward", "scaler.scale(loss).backward()"),
            statement("update", "scaler.step(optimizer)\nscaler.update()"),
        )
    return _TF32 if precision == "tf32" else Code()


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Number format of the matrix products; parameters and gradients stay fp32."""

    precision: str = setting(
        "fp32",
        "fp32, tf32 (GPU), or autocast to bf16 or fp16 (GPU). Speeds up compute, not communication: "
        "gradients stay fp32.",
        choices=("fp32", "tf32", "bf16", "fp16"),
        common="Job",
        brief="fp32, tf32, bf16 (--amp) or fp16.",
        shortcut=("amp", "bf16"),
        lever=Lever(
            tries=("tf32", "bf16", "fp16"),
            changes="rounding",
            is_compiled_in=True,
            in_bundle=("bf16",),
            switches=("fp32", "tf32", "bf16"),  # fp16 scales its loss from the first step on
            expects=(
                # PyTorch allows tf32 in convolutions by default.
                ExpectedEffect(
                    value="tf32",
                    device="cuda",
                    factors={"products": 0.35, "convolutions": 1.0},
                    source=_H200,
                ),
                ExpectedEffect(
                    value="bf16",
                    device="cuda",
                    factors={"products": 0.12, "convolutions": 0.6, "kernels": 0.7, "host": 1.2},
                    source=_H200,
                ),
                ExpectedEffect(
                    value="fp16",
                    device="cuda",
                    factors={"products": 0.12, "convolutions": 0.6, "kernels": 0.75, "host": 1.35},
                    source=_H200,
                ),
                ExpectedEffect(
                    value="bf16",
                    device="cpu",
                    factors={"products": 0.7},
                    source="half the bytes of fp32; matrix units of recent processors gain more",
                ),
            ),
            code=_in_script,
        ),
    )

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """tf32 is a mode of NVIDIA's matrix units, and fp16 needs their range of gradient scaling."""
        if values["device"] == "cpu" and values["precision"] in ("tf32", "fp16"):
            raise CannotRun(f"precision {values['precision']} requires a CUDA GPU; bf16 works on the CPU")
