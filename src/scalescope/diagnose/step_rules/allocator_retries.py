"""Allocator retries: GPU memory is requested from the driver and returned to it while steps run."""

from scalescope.analysis.training.activity import AllocatorCalls
from scalescope.diagnose.advice import advise, batch_name, this_job
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import HOST_TERMS, StepFacts
from scalescope.results.run_commands import command_on

RULE = "memory requested from the driver in every step"
# What a call takes, and the wait for the GPU that comes with freeing: orders of magnitude.
_ALLOCATION_S = 0.5e-3
_RELEASE_S = 0.5e-3
_RETRY_S = 1e-3
_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
_EXPANDABLE = "expandable_segments:True"


def rule(facts: StepFacts) -> Finding | Abstention | None:
    worst, cost_s = _worst(facts), requests_cost_s(facts)
    if worst is None or not facts.is_worth(cost_s):
        return None
    retries, allocations, releases = worst.retries or 0.0, worst.allocations or 0.0, worst.releases or 0.0
    full = (
        f"memory was full {retries:.1f} times per step, so that cached blocks were freed first"
        if retries
        else f"{releases:.1f} were returned"
    )
    return facts.finding(
        RULE,
        f"Each step requests {allocations:.1f} blocks of GPU memory from the driver, which takes long and "
        f"makes the host wait for the GPU; {full}.",
        cost_s,
        root=True,
        estimated=True,
        terms=HOST_TERMS,
        evidence=(
            Evidence(name="retries per step", value=retries, source="torch.cuda.memory_stats"),
            Evidence(name="cudaMalloc per step", value=allocations, source="torch.cuda.memory_stats"),
            Evidence(name="cudaFree per step", value=releases, source="torch.cuda.memory_stats"),
            *_fragmentation(worst),
        ),
        advice=_advice(facts, worst),
    )


def _worst(facts: StepFacts) -> AllocatorCalls | None:
    known = [activity.allocator for activity in facts.activities if activity.allocator is not None]
    return max(known, key=_calls_s, default=None)


def requests_cost_s(facts: StepFacts) -> float:
    """What the replay saves without these calls; where nothing was recorded, what so many calls take."""
    worst = _worst(facts)
    calls_s = 0.0 if worst is None else _calls_s(worst)
    if facts.replay is not None:
        return facts.bounded(facts.replay.allocation_cost_s, *HOST_TERMS) if calls_s > 0.0 else 0.0
    return min(calls_s, facts.step_s)


def _calls_s(calls: AllocatorCalls) -> float:
    return (
        _ALLOCATION_S * (calls.allocations or 0.0)
        + _RELEASE_S * (calls.releases or 0.0)
        + _RETRY_S * (calls.retries or 0.0)
    )


def _fragmentation(calls: AllocatorCalls) -> tuple[Evidence, ...]:
    if calls.fragmented is None:
        return ()
    return (Evidence(name="reserved but unusable", value=calls.fragmented, source="torch.cuda.memory_stats"),)


def _advice(facts: StepFacts, calls: AllocatorCalls) -> tuple[Advice, ...]:
    variables = facts.trial.env or {}
    expandable: tuple[Advice, ...] = ()
    if _VARIABLE not in variables:
        changes = {**this_job(facts), "env": {**variables, _VARIABLE: _EXPANDABLE}}
        expandable = (
            Advice(label="let blocks of memory grow in place", argv=command_on(facts.path, "train", changes)),
        )
    smaller = advise(facts, "use a smaller batch", batch_name(facts), max(1, facts.batch // 2))
    if calls.retries:
        return (*expandable, *smaller)
    return (Advice(label="remove torch.cuda.empty_cache() from the training step"), *expandable)
