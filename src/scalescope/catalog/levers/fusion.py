"""Card of the `fusion` lever."""

from dataclasses import dataclass

from scalescope.catalog.setting import Lever, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """Fewer and larger kernels: less time between them, less traffic to memory."""

    compile: str = setting(
        "none",
        "torch.compile: default fuses kernels, reduce-overhead also replays them as CUDA graphs, "
        "max-autotune tries many versions of each. Models are compiled before the measurement.",
        choices=("none", "default", "reduce-overhead", "max-autotune"),
        neutral="none",
        lever=Lever(
            tries=("default", "reduce-overhead", "max-autotune"),
            changes="rounding",
            starts_slowly=True,
            on_request={"max-autotune": "compiling may take many minutes"},
        ),
    )
    jit: bool = setting(
        False,
        "TorchScript, which PyTorch has deprecated in favour of torch.compile.",
        neutral=False,
        lever=Lever(
            tries=(True,), changes="rounding", on_request={True: "PyTorch has deprecated TorchScript"}
        ),
    )
