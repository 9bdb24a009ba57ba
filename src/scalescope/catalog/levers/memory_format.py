"""Card of the `memory_format` lever."""

from dataclasses import dataclass

from scalescope.catalog.setting import Lever, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFormat:
    """Order of an image's values in memory."""

    memory_format: str = setting(
        "contiguous",
        "contiguous stores the channels of an image separately (NCHW), channels_last interleaves them "
        "(NHWC), which suits convolutions on the matrix units of GPUs.",
        choices=("contiguous", "channels_last"),
        neutral="contiguous",
        lever=Lever(tries=("channels_last",), needs=("convolutions",), changes="rounding"),
    )
