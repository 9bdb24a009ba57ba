"""Card of the `precision` lever."""

from dataclasses import dataclass

from scalescope.catalog.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Number format of the matrix products; parameters and gradients stay fp32."""

    precision: str = setting(
        "fp32",
        "fp32, tf32 (GPU), bf16 or fp16 (GPU) by autocast. Speeds up compute, not the gradient "
        "traffic: gradients stay fp32.",
        choices=("fp32", "tf32", "bf16", "fp16"),
    )

    needs_cuda = ("tf32", "fp16")
