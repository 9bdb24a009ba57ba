"""Card of the `kernels` lever."""

from dataclasses import dataclass

from scalescope.catalog.setting import Lever, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Which of several kernels for the same operation is used."""

    cudnn_benchmark: bool = setting(
        False,
        "Let cuDNN try its convolutions at first use and keep the fastest; shapes must not change.",
        neutral=False,
        lever=Lever(tries=(True,), needs=("cuda", "convolutions"), changes="rounding"),
    )
    attention: str = setting(
        "auto",
        "Kernel of the attention: flash and cudnn need half precision, math spells it out.",
        choices=("auto", "flash", "efficient", "cudnn", "math"),
        neutral="auto",
        lever=Lever(
            tries=("flash", "efficient", "cudnn", "math"), needs=("cuda", "attention"), changes="rounding"
        ),
    )
