"""Card of the user's training command, which runs unchanged: the words after `--`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.levers.copying import Copying
from scalescope.catalog.levers.fusion import Fusion
from scalescope.catalog.levers.input import Input
from scalescope.catalog.levers.precision import Precision
from scalescope.catalog.setting import SCRIPT, left_to_script, setting
from scalescope.catalog.training import Training
from scalescope.catalog.traits import WorkloadTraits
from scalescope.errors import BadInput

_GRAPHS = "CUDA graphs need steps that were written for them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(WorkloadTraits):
    """An unchanged training command: its own loop, its own launcher, nothing edited."""

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
        "NAME=VALUE[,...]: values for {NAME} in the command. Repeat for more names.",
        kind="env",
    )
    samples_per_step: int | None = setting(
        None,
        "Samples per rank, per step, if the model's input does not show them. If ranks share a batch: its "
        "samples divided by the number of ranks.",
        low=1,
        high=10**9,
        none_word="auto",
    )
    step_at: str | None = setting(
        None,
        "MODULE:FUNCTION in the command's code that is called once per step, if optimizer steps do not mark "
        "the steps.",
    )
    allow_writes: bool = setting(
        False,
        "Let the command change your files and log to experiment trackers while it is measured. Otherwise it "
        "works on a private copy that is discarded.",
    )
    output_to: str | None = setting(
        None,
        "Keep the files that the command writes while it is measured in this folder, one subfolder per "
        "launch. Otherwise they are discarded.",
        sweep=False,
        identity=False,
        holds_path=True,
    )
    keep_running: bool = setting(
        False,
        "Change nothing, measure one window, then let the command run to completion.",
    )

    # Levers that need no edit.
    num_workers: int | None = left_to_script(Input, "num_workers", not_tried=(0,))
    persistent_workers: bool | None = left_to_script(Input, "persistent_workers")
    prefetch_factor: int | None = left_to_script(Input, "prefetch_factor")
    pin_memory: bool | None = left_to_script(Copying, "pin_memory")
    # The script may not scale its loss, as fp16 requires.
    precision: str | None = left_to_script(Precision, "precision", not_tried=("fp16",))
    compile: str = left_to_script(
        Fusion,
        "compile",
        default="none",
        on_request={"reduce-overhead": _GRAPHS, "max-autotune": "compiling may take many minutes"},
    )
    fused_optimizer: bool = left_to_script(Training, "fused_optimizer", default=False)

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
        "Number of rank groups that work on different samples, if ranks share a batch.",
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
        Precision.check(values)
        if values["link"] is not None:
            raise BadInput(
                "--link cannot be used with a command: its launcher could not reach ranks in other network "
                "namespaces"
            )
