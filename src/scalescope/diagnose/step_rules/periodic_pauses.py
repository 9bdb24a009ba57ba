"""Periodic pauses: every k-th step is longer, as with checkpoints, logging or validation."""

from scalescope.analysis.training.pauses import REST, PeriodicPauses, periodic_pauses
from scalescope.diagnose.advice import advise
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import StepFacts
from scalescope.quantities import in_ms

RULE = "periodic pauses"
_GARBAGE = 0.5  # of the pauses: then they are its finding
_MORE_WORK = 1.2  # times that of other steps: then they are long batches
_PARTS = {
    "input": "while waiting for a batch",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer step",
    REST: "between steps",
}


def rule(facts: StepFacts) -> Finding | Abstention | None:
    on_gpu = facts.trial.device == "cuda"
    pauses = periodic_pauses(facts.launches, on_gpu=on_gpu)
    if pauses is None or not facts.is_worth(pauses.cost_s) or _is_explained(facts, pauses):
        return None
    return facts.finding(
        RULE,
        f"Every {pauses.period} steps {_who(facts, pauses)}.",
        pauses.cost_s,
        root=True,
        evidence=(
            Evidence(name="period", value=pauses.period, unit="steps", source="step times of each rank"),
            Evidence(name="pause", value=pauses.length_s, unit="s", source="step times of each rank"),
            *(Evidence(name="rank", value=rank, source="host time of long steps") for rank in pauses.origins),
            *_part_of(pauses),
            Evidence(
                name="pauses at random, per step",
                value=pauses.other_cost_s,
                unit="s",
                source="step times of each rank",
            ),
        ),
        advice=_advice(facts, pauses),
    )


def _is_explained(facts: StepFacts, pauses: PeriodicPauses) -> bool:
    """Whether the cause is another: garbage collection, loader processes that deliver in turn, or batches
    that hold more."""
    by_garbage = pauses.gc_share is not None and pauses.gc_share >= _GARBAGE
    workers = facts.trial.num_workers or (facts.loading.workers if facts.loading is not None else 0) or 0
    by_loader = pauses.part == "input" and workers > 1 and pauses.period % workers == 0
    by_work = pauses.work_ratio is not None and pauses.work_ratio >= _MORE_WORK
    return by_garbage or by_loader or by_work


def _who(facts: StepFacts, pauses: PeriodicPauses) -> str:
    """Who pauses for how long, and where."""
    long = f"for {in_ms(pauses.length_s)}"
    where = "" if pauses.part is None else f" {_PARTS[pauses.part]}"
    if facts.ranks == 1:
        return f"the rank pauses {long}{where}"
    if not pauses.origins or len(pauses.origins) == facts.ranks:
        return f"all ranks pause {long}{where}"
    if len(pauses.origins) == 1:
        return f"rank {pauses.origins[0]} pauses {long}{where}, and all others wait for it"
    return f"ranks {', '.join(map(str, pauses.origins))} pause {long}{where}, and all others wait for them"


def _part_of(pauses: PeriodicPauses) -> tuple[Evidence, ...]:
    if pauses.part is None:
        return ()
    return (Evidence(name="part of the step", value=pauses.part, source="host time of long steps"),)


def _advice(facts: StepFacts, pauses: PeriodicPauses) -> tuple[Advice, ...]:
    if pauses.part == "input":
        return (
            *advise(facts, "keep loader processes between epochs", "persistent_workers", True),
            Advice(label=f"find what the data does every {pauses.period} batches, such as opening a file"),
        )
    return (
        Advice(
            label=f"find what the code does every {pauses.period} steps: save checkpoints in a thread "
            "(torch.distributed.checkpoint.async_save), and log and validate less often"
        ),
    )
