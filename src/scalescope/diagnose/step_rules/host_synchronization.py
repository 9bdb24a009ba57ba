"""Host synchronization: lines of code that wait for the GPU, which then has nothing to do."""

from scalescope.analysis.training.recording import StepRecording, SyncSite
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import StepFacts
from scalescope.results.traces import step_parts

RULE = "host synchronization"
_OFTEN = 0.5  # per step: rarer waits are logging
_SHOWN = 3


def rule(facts: StepFacts) -> Finding | Abstention | None:
    recording = facts.recording
    if recording is None or recording.replay is None:
        return None
    sites = tuple(site for site in recording.syncs if site.per_step >= _OFTEN)
    cost_s = min(max(recording.replay.sync_cost_s, _idle_after_waits_s(recording)), _idle_s(recording))
    if not sites or not facts.is_worth(cost_s):
        return None
    step_s = recording.plain_step_s or facts.step_s
    return facts.finding(
        RULE,
        f"{_waits(sites[0])}{_others(sites)}. The GPU runs out of work meanwhile: without these waits a step "
        f"would take about {(step_s - cost_s) * 1e3:.1f} instead of {step_s * 1e3:.1f} ms.",
        cost_s,
        estimated=True,
        root=True,
        evidence=(
            *(_evidence(site) for site in sites[:_SHOWN]),
            Evidence(name="GPU idle", value=_idle_s(recording), unit="s", source="trace, per step"),
        ),
        advice=tuple(_advice(site) for site in sites[:_SHOWN]),
    )


def _idle_s(recording: StepRecording) -> float:
    """Idle time of a step without a profiler: what kernels and copies leave of it."""
    busy_s = recording.recorded_step_s - sum(recording.parts[name] for name in step_parts.IDLE)
    step_s = recording.plain_step_s or recording.recorded_step_s
    return max(0.0, step_s - busy_s)


def _idle_after_waits_s(recording: StepRecording) -> float:
    """The share of idle time that follows on waits, of a step without a profiler."""
    recorded_s = sum(recording.parts[name] for name in step_parts.IDLE)
    share = recording.parts[step_parts.IDLE_SYNC] / recorded_s if recorded_s else 0.0
    return share * _idle_s(recording)


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
