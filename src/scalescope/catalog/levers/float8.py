"""Card of the `float8` lever."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.code_lines import Code, ScriptContext, code, statement
from scalescope.catalog.setting import ExpectedEffect, Lever, setting
from scalescope.errors import CannotRun

_FITS = """\
def fits_float8(module, name):
    if not isinstance(module, torch.nn.Linear):
        return False
    return module.in_features % 16 == 0 and module.out_features % 16 == 0"""


def _in_script(float8: bool, context: ScriptContext) -> Code:
    if not float8:
        return Code()
    return code(
        statement("imports", "from torchao.float8 import convert_to_float8_training"),
        statement("definitions", _FITS),
        statement("model", "convert_to_float8_training(model, module_filter_fn=fits_float8)"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8:
    """Matrix products of linear layers in 8 bits."""

    float8: bool = setting(
        False,
        "Compute the matrix products of linear layers in 8 bits. Requires torchao, and hardware support that "
        "GPUs have since Hopper. Best with --precision bf16 and --compile default.",
        lever=Lever(
            tries=(True,),
            needs=("cuda", "torchao"),
            changes="rounding",
            is_compiled_in=True,
            code=_in_script,
            expects=(
                ExpectedEffect(
                    factors={"products": 1.0, "kernels": 1.3},
                    company=("precision", ("bf16",)),
                    together={"products": 0.65},
                    source="twice the rate of bf16 on Hopper by its data sheet; scaling costs other kernels",
                ),
            ),
        ),
    )

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """The units for it are a GPU's."""
        if values["float8"] and values["device"] == "cpu":
            raise CannotRun("float8 requires a CUDA GPU")
