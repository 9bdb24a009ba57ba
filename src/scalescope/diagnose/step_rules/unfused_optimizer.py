"""Unfused optimizer: parameters are updated by many passes over memory, where one would do."""

from scalescope.analysis.training.step_waterfall import OPTIMIZER
from scalescope.diagnose.advice import advise
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import HOST_TERMS, StepFacts
from scalescope.quantities import in_ms

RULE = "the optimizer is not fused"
_CLASSES = {"sgd": "SGD", "adamw": "AdamW"}  # of the setting
_FUSABLE = {"SGD", "Adam", "AdamW", "Adagrad"}  # what torch has fused, on the CPU and on NVIDIA GPUs
_FUSABLE_SHARDED = {"Adam", "AdamW"}  # for parameters that are cut over the ranks
_SEVERAL_PASSES = {"Adam", "AdamW", "Adagrad"}  # also without momentum
# Adam reads and writes 20 values per parameter unfused and 7 fused, so that two thirds go away; less is
# claimed, as no memory is equally fast for both.
_SAVED = 0.5
_TERMS = (OPTIMIZER, *HOST_TERMS)
_MANY = 3.0  # times the kernels of a fused optimizer
_TENSORS_PER_KERNEL = 30
_VALUES_PER_KERNEL = 20_000_000
_FEW_KERNELS = 4.0  # beside those: counting steps, clearing gradients


def rule(facts: StepFacts) -> Finding | Abstention | None:
    name = _name(facts)
    if not _can_be_fused(facts):
        return None
    time_s, source = _time_s(facts)
    saved_s = fused_cost_s(facts)
    if time_s is None or not facts.is_worth(saved_s):
        return None
    kernels = None if facts.recording is None else facts.recording.optimizer_kernels
    by = f" in {kernels:,.0f} kernels" if facts.trial.on_gpu and kernels else ""
    return facts.finding(
        RULE,
        f"{name} updates the parameters in {in_ms(time_s)} per step{by}, passing over them several "
        f"times. Fused into one pass it would save about {in_ms(saved_s)}.",
        saved_s,
        root=True,
        estimated=True,
        terms=_TERMS if facts.trial.on_gpu else (OPTIMIZER,),
        evidence=(
            Evidence(name="optimizer", value=time_s, unit="s", source=source),
            *(
                (Evidence(name="optimizer kernels", value=kernels, unit="per step", source="recorded steps"),)
                if kernels
                else ()
            ),
        ),
        advice=_advice(facts, name),
    )


def fused_cost_s(facts: StepFacts) -> float:
    """What is saved if the optimizer is fused: on a GPU by the replay, which has few launches then, and not
    more than what the step takes less without any update; else a share of its time."""
    time_s, _ = _time_s(facts)
    if time_s is None or not _can_be_fused(facts):
        return 0.0
    if facts.replay is None:
        return _SAVED * time_s
    saved_s = facts.bounded(facts.replay.optimizer_cost_s, *_TERMS)
    return saved_s if facts.optimizer_s is None else min(saved_s, time_s)


def _can_be_fused(facts: StepFacts) -> bool:
    name = _name(facts)
    if name not in _fusable(facts) or _is_fused(facts):
        return False
    return _has_many_kernels(facts) if facts.trial.on_gpu else name in _SEVERAL_PASSES


def _fusable(facts: StepFacts) -> set[str]:
    if facts.configuration.wrapper in ("fsdp1", "fsdp2"):
        return _FUSABLE_SHARDED
    layout = facts.trial.memory_layout
    return _FUSABLE_SHARDED if layout is not None and "parameters" in layout.sharded else _FUSABLE


def _own(facts: StepFacts) -> str | None:
    """The optimizer that a workload brought along."""
    return facts.configuration.launches[0].own_optimizer


def _name(facts: StepFacts) -> str:
    return _own(facts) or _CLASSES.get(facts.trial.optimizer, facts.trial.optimizer)


def _is_fused(facts: StepFacts) -> bool:
    if facts.model.optimizer_is_fused is not None:
        return facts.model.optimizer_is_fused
    is_decided = _own(facts) is None or facts.trial.is_command
    return is_decided and facts.trial.is_on("fused_optimizer")


def _has_many_kernels(facts: StepFacts) -> bool:
    """Whether there are many times the kernels of a fused optimizer; not where none were counted."""
    kernels = None if facts.recording is None else facts.recording.optimizer_kernels
    if kernels is None:
        return False
    tensors, values = facts.model.parameter_tensors or 0, facts.model.parameters or 0
    return kernels > _MANY * (_FEW_KERNELS + tensors / _TENSORS_PER_KERNEL + values / _VALUES_PER_KERNEL)


def _time_s(facts: StepFacts) -> tuple[float | None, str]:
    """What updating parameters takes, and how that is known."""
    measured = facts.optimizer_s
    if measured is not None:
        is_sure = measured.low is None or measured.low > 0.0
        return (measured.value if is_sure else None), "step minus the same without an update"
    if facts.waterfall is not None and (term := facts.waterfall.term(OPTIMIZER)) is not None:
        source = "recorded steps" if term.source == "trace" else "the host's clock around it"
        return term.time_s.value, source
    # On a GPU the host's time is that of launching, and not that of the kernels.
    times_s = [a.host_s["optimizer"] for a in facts.activities if "optimizer" in a.host_s]
    if facts.trial.on_gpu or not times_s:
        return None, ""
    return max(times_s), "the host's clock around it"


def _advice(facts: StepFacts, name: str) -> tuple[Advice, ...]:
    if facts.trial.is_command:
        return (
            *advise(facts, "update all parameters in one pass", "fused_optimizer", True),
            Advice(label=f"in the script: torch.optim.{name}(..., fused=True)"),
        )
    if _own(facts) is not None:
        return (Advice(label=f"in the workload: torch.optim.{name}(..., fused=True)"),)
    return advise(facts, "update all parameters in one pass", "fused_optimizer", True)
