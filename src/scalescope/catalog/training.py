"""Settings of every benchmark that trains: model, data, strategy, batch and optimizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from scalescope.catalog import cards
from scalescope.catalog.code_lines import Code, ScriptContext, argument, code
from scalescope.catalog.setting import ExpectedEffect, Lever, PerDevice, setting
from scalescope.errors import BadInput

# How many values each optimizer keeps for a parameter, besides the parameter itself.
STATE_VALUES = {"sgd": 0, "adamw": 2}

_H200 = "docs/measurements/2026-11-15-h200-levers.md"


def strategies_worth_trying() -> tuple[str, ...]:
    """Every strategy that wraps: what only averages gradients, then what saves memory, then pipelines."""
    owners = {name: cards.card("strategies", name) for name in cards.known_names("strategies")}
    wrapping = [name for name, owner in owners.items() if owner.wraps]
    return tuple(
        sorted(
            wrapping,
            key=lambda name: (owners[name].least_ranks, owners[name].saving_layout is not None, name),
        )
    )


def _wrapping(strategy: str, context: ScriptContext) -> Code:
    """What the strategy's own card says; auto is one of the others in every trial."""
    if strategy == "auto":
        return Code()
    wrapping: Code = cards.card("strategies", strategy).code(context)
    return wrapping


def _batches_of(samples: int | None, context: ScriptContext) -> Code:
    return Code() if samples is None else code(argument("loader", "batch_size", samples))


def _global_batches_of(samples: int | None, context: ScriptContext) -> Code:
    if samples is None:
        return Code()
    return Code(instead=f"the batch_size of each rank's DataLoader is {samples} ÷ ranks ÷ accumulation steps")


def _fused(is_on: bool, context: ScriptContext) -> Code:
    return code(argument("optimizer", "fused", True)) if is_on else Code()


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The job itself: what is trained, on what, how it is spread, by which optimizer."""

    selects = ("workloads", "data", "strategies", "levers")
    measures = "training"  # in the table of planned trials
    measures_by_purpose: ClassVar[Mapping[str | None, str]] = {}
    launch_figure: ClassVar[str | None] = "step time"  # shown while a run fills up
    oom_is_result = False
    measures_time = True  # other load changes what it measures
    optional_purposes: ClassVar[tuple[str, ...]] = ()  # launches whose failure does not fail the run
    lists_failures_as_training = True  # in results.json
    takes_commands: ClassVar[bool] = False  # a training command can be measured unchanged

    workload: str = setting(
        "mlp",
        "Model to train; FILE.py:FUNCTION or MODULE:FUNCTION selects your own.",
        common="Job",
        brief="Built-in model, or your FILE.py:FUNCTION.",
        holds_path=True,
    )
    data: str = setting("synthetic", "Training data.", common="Job")
    strategy: str = setting(
        "auto",
        "How the work is distributed over ranks; auto is single on one rank and ddp on more.",
        lever=Lever(
            tries=strategies_worth_trying,
            is_compiled_in=True,
            needs=("ranks",),
            expects=(
                ExpectedEffect(
                    factors={"communication": 1.3, "kernels": 1.1},
                    source="strategies other than ddp save memory but also exchange parameters",
                ),
            ),
            code=_wrapping,
        ),
        common="Job",
        brief="How ranks share the work: ddp, fsdp ...",
    )
    batch_size: int | None = setting(
        PerDevice(cpu=256, cuda=4096),
        "Samples per rank, per step: the work grows with the number of ranks (weak scaling).",
        low=1,
        high=2**31,
        lever=Lever(multiples=(2, 8, 32, 128), changes="the job", code=_batches_of),
        common="Job",
        brief="Per rank (weak scaling).",
    )
    global_batch_size: int | None = setting(
        None,
        "Samples per step over all ranks: each rank gets its share (strong scaling).",
        low=1,
        high=2**31,
        lever=Lever(multiples=(2, 8, 32, 128), changes="the job", code=_global_batches_of),
        common="Job",
        brief="Total over all ranks (strong scaling).",
    )
    optimizer: str = setting(
        "sgd",
        "sgd updates parameters without extra state; adamw keeps two values per parameter and costs more.",
        choices=tuple(STATE_VALUES),
    )
    fused_optimizer: bool = setting(
        False,
        "Update all parameters in one kernel instead of several.",
        lever=Lever(
            tries=(True,),
            in_bundle=(True,),
            changes="rounding",
            expects=(
                ExpectedEffect(device="cuda", factors={"optimizer": 0.4, "host": 0.95}, source=_H200),
                ExpectedEffect(
                    device="cpu", factors={"optimizer": 0.8}, source="one pass over the parameters"
                ),
            ),
            code=_fused,
        ),
    )
    lr: float = setting(0.01, "Learning rate; it does not affect speed.", low=0, high=1e6)

    @staticmethod
    def warmup_iterations(settings: Mapping[str, Any]) -> int | None:
        """Steps before the measured ones, for results.json; None where a launch is not timed."""
        return None

    @staticmethod
    def measured_iterations(settings: Mapping[str, Any]) -> int | None:
        """Steps that a launch measures; None where the data or the window decides."""
        return None

    @staticmethod
    def check_job(values: Mapping[str, Any]) -> None:
        """Refuse a batch that cannot be shared and data that the model cannot read."""
        total, shares = values["global_batch_size"], _shares(values)
        if total is not None and total % shares:
            near = max(shares, total - total % shares)
            over = f"{values['world_size']} ranks"
            if _accumulation_steps(values) > 1:
                over += f" × {_accumulation_steps(values)} accumulation steps"
            raise BadInput(f"global_batch_size must be divisible by {over}, got {total}; use {near}")
        takes = cards.card("workloads", values["workload"]).takes
        if values["data"] not in takes:
            raise BadInput(
                f"workload {values['workload']} cannot use data {values['data']}; "
                f"it can use {', '.join(takes)}"
                f"{_reader_of(values['data'])}"
            )


def _reader_of(data: str) -> str:
    """The first built-in workload that can read it."""
    if not cards.card("data", data).has_validation:  # made up or one's own: nothing to be read elsewhere
        return ""
    names = (name for name in cards.known_names("workloads") if data in cards.card("workloads", name).takes)
    return next((f"; --workload {name} can use {data}" for name in names), "")


def _shares(values: Mapping[str, Any]) -> int:
    """Into how many equal parts a global batch is cut."""
    replicas = cards.card("strategies", values["strategy"]).replicas(values["world_size"])
    return int(replicas * _accumulation_steps(values))


def _accumulation_steps(values: Mapping[str, Any]) -> int:
    """A command may accumulate gradients without telling us."""
    return int(values.get("accumulation_steps", 1))
