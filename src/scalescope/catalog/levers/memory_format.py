"""Card of the `memory_format` lever."""

from dataclasses import dataclass

from scalescope.catalog.setting import Lever, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFormat:
    """Order of a picture's numbers in memory."""

    memory_format: str = setting(
        "contiguous",
        "contiguous keeps a picture's colours apart (NCHW), channels_last together (NHWC), which is what the "
        "matrix units of GPUs want from convolutions.",
        choices=("contiguous", "channels_last"),
        neutral="contiguous",
        lever=Lever(tries=("channels_last",), needs=("convolutions",), changes="rounding"),
    )
