"""Card of the `fusion` lever."""

from dataclasses import dataclass

from scalescope.catalog.code_lines import Code, ScriptContext, code, statement
from scalescope.catalog.setting import SCRIPT, ExpectedEffect, Lever, PerDevice, setting

_H200 = "docs/measurements/2026-11-15-h200-levers.md"


def _compiled(mode: str, context: ScriptContext) -> Code:
    """The forward pass and the loss in one graph, after DDP, which dynamo then recognises; in a script that
    is measured unchanged, the model alone."""
    if mode == "none":
        return Code()
    if context.strategy == SCRIPT:
        chosen = "" if mode == "default" else f'mode="{mode}"'
        return code(statement("before_loop", f"model.compile({chosen})"))
    if mode == "default":
        return code(statement("before_loop", "compute_loss = torch.compile(compute_loss)"))
    return code(
        statement("before_loop", f'compute_loss = torch.compile(compute_loss, mode="{mode}")'),
        statement("before_forward", "torch.compiler.cudagraph_mark_step_begin()"),
        statement("loss", "loss = loss.clone()  # a CUDA graph overwrites its outputs"),
    )


def _scripted(is_on: bool, context: ScriptContext) -> Code:
    return code(statement("model", "model = torch.jit.script(model)")) if is_on else Code()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """Fewer and larger kernels: less time between them, less traffic to memory."""

    compile: str = setting(
        "none",
        "torch.compile mode: default fuses kernels, reduce-overhead also replays them as CUDA graphs, "
        "max-autotune benchmarks many versions of each kernel. Compilation is not part of the measurement.",
        choices=("none", "default", "reduce-overhead", "max-autotune"),
        lever=Lever(
            # Without CUDA graphs, reduce-overhead is default.
            tries=("default", PerDevice(cpu="default", cuda="reduce-overhead"), "max-autotune"),
            changes="rounding",
            starts_slowly=True,
            switches=("none", "default"),  # no CUDA graphs: they hold on to memory and to addresses
            expects=(
                ExpectedEffect(
                    value="default", device="cuda", factors={"kernels": 0.6, "host": 0.8}, source=_H200
                ),
                ExpectedEffect(
                    value="reduce-overhead",
                    device="cuda",
                    factors={"kernels": 0.62, "host": 0.2},
                    source=_H200,
                ),
                ExpectedEffect(device="cpu", factors={"kernels": 0.85}, source="fewer passes over memory"),
            ),
            fails_where={
                "reduce-overhead": "CUDA graphs need fixed shapes, no copies from the host inside the step, "
                "and outputs that are not kept from step to step"
            },
            on_request={"max-autotune": "compiling may take many minutes"},
            code=_compiled,
        ),
    )
    jit: bool = setting(
        False,
        "Use TorchScript, which PyTorch has deprecated in favour of torch.compile.",
        lever=Lever(
            tries=(True,),
            changes="rounding",
            on_request={True: "PyTorch has deprecated TorchScript"},
            code=_scripted,
        ),
    )
