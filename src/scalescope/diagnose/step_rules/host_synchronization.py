"""Host synchronization: lines of code that wait for the GPU, which then has nothing to do."""

from scalescope.analysis.recording import SyncSite
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import HOST_TERMS, StepFacts
from scalescope.quantities import in_ms, milliseconds

RULE = "host synchronization"
_SHOWN = 3
# Of a rank's step by itself: exchanges are launched by the same host, so until it is fixed, nothing else is
# to blame for when they begin.
_DISTORTS = 0.1


def rule(facts: StepFacts) -> Finding | Abstention | None:
    recording = facts.recording
    if recording is None:
        return None
    sites, cost_s = recording.frequent_waits, facts.wait_cost_s
    if not facts.is_worth(cost_s):
        return None
    step_s = facts.timed_s
    return facts.finding(
        RULE,
        f"{_waits(sites[0])}{_others(sites)}. The GPU runs out of work meanwhile: without this a step would "
        f"take about {milliseconds(step_s - cost_s)} instead of {in_ms(step_s)}.",
        cost_s,
        estimated=True,
        root=True,
        leads=cost_s > _DISTORTS * step_s,
        terms=HOST_TERMS,
        evidence=tuple(_evidence(site) for site in sites[:_SHOWN]),
        advice=tuple(_advice(site) for site in sites[:_SHOWN]),
    )


def _waits(site: SyncSite) -> str:
    """`model.py:31 waits for the GPU 48 times per step (x.item() in forward)`."""
    count = f"{site.per_step:.0f} times" if site.per_step >= 1.5 else "once"
    if not site.file:
        return f"{site.operation} waits for the GPU {count} per step (its line of code is not known)"
    code = f"{site.code} " if site.code else ""
    return f"{site.location} waits for the GPU {count} per step ({code}in {site.function})"


def _others(sites: tuple[SyncSite, ...]) -> str:
    if len(sites) == 1:
        return ""
    others = "another line does" if len(sites) == 2 else f"{len(sites) - 1} more lines do"
    return f", and {others} the same"


def _evidence(site: SyncSite) -> Evidence:
    name = site.location or site.operation
    source = "trace" if site.from_trace else "torch.cuda.set_sync_debug_mode"
    return Evidence(name=name, value=site.per_step, unit="waits per step", source=source)


def _advice(site: SyncSite) -> Advice:
    if not site.file:
        return Advice(label=f"avoid {site.operation} in the step, or use it every 100 steps only")
    instead = "keep the value on the GPU (torch.where, masks), or read it every 100 steps only"
    return Advice(label=f"{site.location}: {instead}")
