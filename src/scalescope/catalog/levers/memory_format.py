"""Card of the `memory_format` lever."""

from dataclasses import dataclass

from scalescope.catalog.code_lines import MAP_TENSORS, Code, ScriptContext, code, statement
from scalescope.catalog.setting import ExpectedEffect, Lever, setting

_TO_CHANNELS_LAST = """\
def to_channels_last(tensor):
    if tensor.dim() != 4:  # not images
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)"""


def _in_script(memory_format: str, context: ScriptContext) -> Code:
    if memory_format == "contiguous":
        return Code()
    return code(
        statement("definitions", MAP_TENSORS),
        statement("definitions", _TO_CHANNELS_LAST),
        statement("model", "model = model.to(memory_format=torch.channels_last)"),
        statement("batch", "batch = map_tensors(to_channels_last, batch)"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFormat:
    """Order of an image's values in memory."""

    memory_format: str = setting(
        "contiguous",
        "contiguous stores the channels of an image separately (NCHW); channels_last interleaves them "
        "(NHWC), which is faster for convolutions on tensor cores.",
        choices=("contiguous", "channels_last"),
        lever=Lever(
            tries=("channels_last",),
            needs=("convolutions",),
            changes="rounding",
            is_compiled_in=True,
            in_bundle=("channels_last",),
            bundled_if_promising=True,
            expects=(
                ExpectedEffect(
                    device="cuda",
                    factors={"convolutions": 0.95},
                    company=("precision", ("bf16", "fp16")),
                    together={"convolutions": 0.5},
                    source="docs/measurements/2026-11-15-h200-levers.md",
                ),
                ExpectedEffect(
                    device="cpu", factors={"convolutions": 0.9}, source="oneDNN's kernels are for NHWC"
                ),
            ),
            code=_in_script,
        ),
    )
