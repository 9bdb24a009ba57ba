"""Card of the `memory_format` lever."""

from dataclasses import dataclass

from scalescope.catalog.setting import ExpectedEffect, Lever, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFormat:
    """Order of an image's values in memory."""

    memory_format: str = setting(
        "contiguous",
        "contiguous stores the channels of an image separately (NCHW), channels_last interleaves them "
        "(NHWC), which suits convolutions on the matrix units of GPUs.",
        choices=("contiguous", "channels_last"),
        neutral="contiguous",
        lever=Lever(
            tries=("channels_last",),
            needs=("convolutions",),
            changes="rounding",
            is_compiled_in=True,
            expects=(
                ExpectedEffect(
                    device="cuda",
                    factors={"products": 0.95},
                    company=("precision", ("bf16", "fp16")),
                    together={"products": 0.5},
                    source="docs/measurements/2026-11-15-h200-levers.md",
                ),
                ExpectedEffect(
                    device="cpu", factors={"products": 0.9}, source="oneDNN's kernels are for NHWC"
                ),
            ),
        ),
    )
