"""Card of a training command of yours, which is run as it is: what stands after `--`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.code_lines import Code, ScriptContext, argument, code, statement
from scalescope.catalog.setting import ExpectedEffect, Lever, setting
from scalescope.catalog.traits import WorkloadTraits
from scalescope.errors import BadInput

SCRIPT = "script"  # the strategy of a command, and a value of its own that is left as it is
_LOADER = "docs/levers/input.md"
_NUMERICS = "changes the numbers that your script computes with"
_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}


def _loader_argument(name: str) -> Callable[[int | bool | None, ScriptContext], Code]:
    """A keyword argument of the script's DataLoader; without a value, what the script has."""

    def code_of(value: int | bool | None, context: ScriptContext) -> Code:
        return Code() if value is None else code(argument("loader", name, value))

    return code_of


def _matmul(precision: str, context: ScriptContext) -> Code:
    if precision == SCRIPT:
        return Code()
    return code(statement("start", f'torch.set_float32_matmul_precision("{precision}")'))


def _autocast(precision: str, context: ScriptContext) -> Code:
    if precision == SCRIPT:
        return Code()
    return code(statement("forward", f'torch.autocast("{context.device}", dtype={_DTYPES[precision]})'))


def _compiled(mode: str, context: ScriptContext) -> Code:
    if mode == "none":
        return Code()
    chosen = "" if mode == "default" else f'mode="{mode}"'
    return code(statement("before_loop", f"model.compile({chosen})"))


def _fused(is_on: bool, context: ScriptContext) -> Code:
    return code(argument("optimizer", "fused", True)) if is_on else Code()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(WorkloadTraits):
    """A training command as it is: its own loop, its own launcher, nothing edited."""

    is_command = True
    levers = ()
    takes = ("own",)
    has_convolutions = has_attention = True  # it may: unknown before it runs
    defaults = {"data": "own", "batch_size": None, "strategy": SCRIPT}  # noqa: RUF012
    decides = ("data", "strategy", "optimizer", "lr", "epochs", "steps_per_epoch", "eval", "stand_in", "seed")

    command: str = setting(
        "",
        "The training command, instead of -- COMMAND: {world_size}, {batch_size}, {global_batch_size} and "
        "the names of --vary are replaced by their values.",
        sweep=False,
        holds_path=True,
    )
    vary: str = setting(
        None,
        "NAME=VALUE[,...]: values that {NAME} in the command takes. Repeat for more names.",
        kind="env",
    )
    samples_per_step: int | None = setting(
        None,
        "Samples that one rank of the command works on in a step, where the input of its model does not "
        "show it. Where ranks share a batch: its samples divided by their number.",
        low=1,
        high=10**9,
        none_word="auto",
    )
    step_at: str | None = setting(
        None,
        "MODULE:FUNCTION of the command's code that is called once per step, where optimizer steps do not "
        "show it.",
    )
    allow_writes: bool = setting(
        False,
        "Let the command change your files and log to trackers while it is measured. Otherwise it works on a "
        "private copy that is discarded.",
    )
    output_to: str | None = setting(
        None,
        "Folder for the files that the command writes while it is measured, instead of discarding them; one "
        "folder per launch.",
        sweep=False,
        identity=False,
        holds_path=True,
    )
    keep_running: bool = setting(
        False,
        "Change nothing, measure one window, and let the command run on to its own end.",
    )

    # Levers that need no edit; `script` and none leave what the script does.
    num_workers: int | None = setting(
        None,
        "Processes of the command's DataLoaders.",
        low=0,
        high=256,
        none_word=SCRIPT,
        lever=Lever(
            tries=(1, 2, 4),
            needs=("loader",),
            expects=(ExpectedEffect(factors={"load": 0.3}, source=_LOADER),),
            code=_loader_argument("num_workers"),
        ),
    )
    pin_memory: bool | None = setting(
        None,
        "Page-locked batches from the command's DataLoaders.",
        lever=Lever(
            tries=(True,),
            needs=("loader", "cuda"),
            expects=(ExpectedEffect(factors={"load": 0.9}, source=_LOADER),),
            code=_loader_argument("pin_memory"),
        ),
    )
    prefetch_factor: int | None = setting(
        None,
        "Batches that each process of the command's DataLoaders prepares ahead.",
        low=1,
        high=1024,
        none_word=SCRIPT,
        lever=Lever(
            tries=(4,),
            needs=("loader", "workers"),
            expects=(ExpectedEffect(factors={"load": 0.95}, source=_LOADER),),
            code=_loader_argument("prefetch_factor"),
        ),
    )
    matmul_precision: str = setting(
        SCRIPT,
        "torch.set_float32_matmul_precision: high allows tf32 on a GPU.",
        choices=(SCRIPT, "highest", "high", "medium"),
        lever=Lever(
            tries=("high",),
            code=_matmul,
            needs=("cuda",),
            changes="rounding",
            expects=(
                ExpectedEffect(
                    factors={"products": 0.4}, source="docs/measurements/2026-11-15-h200-levers.md"
                ),
            ),
        ),
    )
    autocast: str = setting(
        SCRIPT,
        "Run the forward pass of the command's model under torch.autocast.",
        choices=(SCRIPT, "bf16", "fp16"),
        lever=Lever(
            tries=("bf16",),
            code=_autocast,
            changes="rounding",
            on_request={"bf16": _NUMERICS},
            expects=(
                ExpectedEffect(
                    factors={"products": 0.2, "kernels": 0.7},
                    device="cuda",
                    source="docs/measurements/2026-11-16-h200-tune.md",
                ),
            ),
        ),
    )
    compile: str = setting(
        "none",
        "Compile the command's model in place (module.compile()); none leaves it as it is.",
        choices=("none", "default", "reduce-overhead"),
        lever=Lever(
            tries=("default",),
            code=_compiled,
            changes="rounding",
            starts_slowly=True,
            on_request={"default": _NUMERICS},
            expects=(
                ExpectedEffect(
                    factors={"kernels": 0.6, "host": 0.5},
                    device="cuda",
                    source="docs/measurements/2026-11-16-h200-tune.md",
                ),
            ),
        ),
    )
    fused_optimizer: bool = setting(
        False,
        "Let the command's optimizers update all parameters in one kernel.",
        lever=Lever(
            tries=(True,),
            code=_fused,
            changes="rounding",
            on_request={True: _NUMERICS},
            expects=(
                ExpectedEffect(
                    factors={"optimizer": 0.4, "host": 0.95},
                    device="cuda",
                    source="docs/measurements/2026-11-15-h200-levers.md",
                ),
            ),
        ),
    )

    # What launches showed, filled in when a run is read (experiment/observed.py); none changes a trial's id.
    observed_batch_size: int | None = setting(
        None,
        "Samples per replica and step that were observed.",
        low=1,
        high=2**31,
        internal=True,
        identity=False,
    )
    observed_global_batch_size: int | None = setting(
        None,
        "Samples of all ranks per step that were observed.",
        low=1,
        high=2**31,
        internal=True,
        identity=False,
    )
    observed_unit: str | None = setting(
        None, "What these are: samples or tokens.", internal=True, identity=False
    )
    observed_wrapper: str | None = setting(
        None,
        "What wraps the model on several ranks: ddp, fsdp2, fsdp1, deepspeed or none.",
        internal=True,
        identity=False,
    )
    observed_loader: bool | None = setting(
        None, "Whether batches come from a DataLoader.", internal=True, identity=False
    )
    observed_replicas: int | None = setting(
        None,
        "Parts of the ranks that work on samples of their own, where ranks share a batch.",
        low=1,
        high=2**31,
        internal=True,
        identity=False,
    )

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Refuse what the command cannot take."""
        if not values["command"]:
            raise BadInput("workload command: give the command after --, or with --command")
        if values["link"] is not None:
            raise BadInput(
                "--link cannot be used with a command: its launcher could not reach ranks in other networks"
            )
