"""Rules about the host of a step: waits for the GPU, late launches, threads, memory and garbage."""

import statistics

from scalescope.analysis.recording import SyncSite
from scalescope.analysis.training.activity import AllocatorCalls, RankActivity
from scalescope.diagnose.advice import advise, batch_name, this_job
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import HOST_TERMS, StepFacts
from scalescope.diagnose.step_rules.compilation import uncompiled_cost_s
from scalescope.diagnose.step_rules.kernels import fused_cost_s, recomputation_cost_s
from scalescope.quantities import counted, in_ms, milliseconds, percent
from scalescope.results.run_commands import command_on

# ---- Allocator retries: GPU memory is requested from the driver and returned to it while steps run


ALLOCATOR_RETRIES = "memory requested from the driver in every step"
# What a call takes, and the wait for the GPU that comes with freeing: orders of magnitude.
_ALLOCATION_S = 0.5e-3
_RELEASE_S = 0.5e-3
_RETRY_S = 1e-3
_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
_EXPANDABLE = "expandable_segments:True"


def allocator_retries_rule(facts: StepFacts) -> Finding | Abstention | None:
    worst, cost_s = _worst(facts), requests_cost_s(facts)
    if worst is None or not facts.is_worth(cost_s):
        return None
    retries, allocations, releases = worst.retries or 0.0, worst.allocations or 0.0, worst.releases or 0.0
    full = (
        f"memory was full {retries:.1f} times per step, so cached blocks had to be freed first"
        if retries
        else f"{releases:.1f} were returned"
    )
    return facts.finding(
        ALLOCATOR_RETRIES,
        f"Each step requests {allocations:.1f} blocks of GPU memory from the driver, which is slow and "
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
    """What the replay saves without these calls; where nothing was recorded, what this many calls take."""
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


# ---- Garbage collection: Python stops the host to look for unused objects


GARBAGE_COLLECTION = "garbage collection"
_ADVICE = (
    Advice(
        label="call gc.freeze() after building model, data and optimizer, to exclude them from collection"
    ),
    Advice(label="call gc.disable() before training, and gc.collect() every few hundred steps on all ranks"),
)


def garbage_collection_rule(facts: StepFacts) -> Finding | Abstention | None:
    worst, cost_s = _garbage_collection_worst(facts), pauses_cost_s(facts)
    garbage = None if worst is None else worst.garbage
    if garbage is None or not facts.is_worth(cost_s):
        return None
    return facts.finding(
        GARBAGE_COLLECTION,
        f"Python's garbage collector blocks the host for {in_ms(garbage.pause_s)} per step "
        f"(longest pause {in_ms(garbage.longest_s)}).",
        cost_s,
        root=True,
        estimated=facts.trial.on_gpu,
        terms=HOST_TERMS if facts.trial.on_gpu else (),
        evidence=(
            Evidence(name="pauses per step", value=garbage.pause_s, unit="s", source="gc.callbacks"),
            Evidence(name="longest pause", value=garbage.longest_s, unit="s", source="gc.callbacks"),
            *(
                Evidence(
                    name=f"collections of generation {generation}",
                    value=count,
                    unit="in a launch",
                    source="gc.callbacks",
                )
                for generation, count in enumerate(garbage.collections)
            ),
        ),
        advice=_ADVICE,
    )


def _pause_s(activity: RankActivity) -> float:
    return 0.0 if activity.garbage is None else activity.garbage.pause_s


def _garbage_collection_worst(facts: StepFacts) -> RankActivity | None:
    return max(facts.activities, key=_pause_s, default=None)


def pauses_cost_s(facts: StepFacts) -> float:
    """A GPU with enough queued work does not notice a pause of the host: it costs at most what the GPU waits
    for the host, or what single long steps take more."""
    worst = _garbage_collection_worst(facts)
    pause_s = 0.0 if worst is None else _pause_s(worst)
    if worst is None or not facts.trial.on_gpu:
        return pause_s
    waits_s = 0.0 if facts.replay is None else facts.replay.step_s - facts.replay.fast_host_s
    times_s = worst.step_times_s
    beyond_s = statistics.fmean(times_s) - statistics.median(times_s) if times_s else 0.0
    return min(pause_s, max(0.0, waits_s, beyond_s))


# ---- Too many CPU threads on one rank: its threads, or its loader's processes, wait for cores


THREADS = "too many CPU threads"
_WAITS = 0.05  # of the time in which the rank wants a core
_WAITS_FOR_LOADER = 0.1  # the same, where only the loader's processes are too many


def threads_rule(facts: StepFacts) -> Finding | Abstention | None:
    cores, wait = _cores(facts), _waited_share(facts)
    if facts.ranks > 1 or facts.trial.stand_in or cores is None or wait is None:
        return None
    # On a GPU one thread of the host launches kernels, whatever their number is set to.
    threads = 1 if facts.trial.on_gpu else facts.trial.threads_per_rank
    workers = (facts.loading.workers if facts.loading is not None else None) or 0
    crowded = threads > cores
    if not crowded and threads + workers <= cores:
        return None
    cost_s = wait * facts.step_s
    if wait < (_WAITS if crowded else _WAITS_FOR_LOADER) or not facts.is_worth(cost_s):
        return None
    loader = f" and {counted(workers, 'loader process')}" if workers else ""
    crowd = f"{counted(threads, 'thread')}{loader}"
    return facts.finding(
        THREADS,
        f"Each rank runs {crowd} on {counted(cores, 'core')}: for {percent(wait)} of the time in which its "
        f"threads were ready to run, no core was free.",
        cost_s,
        root=True,
        estimated=True,
        evidence=(
            Evidence(name="threads", value=threads, source="settings"),
            Evidence(name="loader processes", value=workers, source="settings"),
            Evidence(name="cores", value=cores, source="the rank's affinity"),
            Evidence(name="waiting for a core", value=wait, source="the system's scheduler"),
        ),
        advice=_threads_advice(facts, cores, workers, crowded=crowded),
    )


def _cores(facts: StepFacts) -> int | None:
    """That the rank may use: by its affinity, and by what the machine has; None is unknown."""
    known = [cores for cores in (facts.model.rank_cores, facts.cores) if cores is not None]
    return min(known, default=None)


def _waited_share(facts: StepFacts) -> float | None:
    """The share of time without a core; None where it is unknown, or other processes took the cores."""
    loads = facts.configuration.loads
    waits = [wait for load in loads if (wait := load.longest_wait) is not None]
    if not waits or any(load.is_present for load in loads):
        return None
    return statistics.fmean(waits)


def _threads_advice(facts: StepFacts, cores: int, workers: int, *, crowded: bool) -> tuple[Advice, ...]:
    if crowded:
        return advise(facts, "one thread per core", "threads_per_rank", cores)
    fewer = advise(facts, "fewer loader processes", "num_workers", workers // 2)
    return fewer if workers > 1 else ()


# ---- Host synchronization: lines of code that wait for the GPU, which then has nothing to do


HOST_SYNCHRONIZATION = "host synchronization"
_SHOWN = 3
# Of a rank's step alone: exchanges are launched by the same host, so until it is fixed, nothing else is
# to blame for when they begin.
_DISTORTS = 0.1


def host_synchronization_rule(facts: StepFacts) -> Finding | Abstention | None:
    recording = facts.recording
    if recording is None:
        return None
    sites, cost_s = recording.frequent_waits, facts.wait_cost_s
    if not facts.is_worth(cost_s):
        return None
    step_s = facts.timed_s
    return facts.finding(
        HOST_SYNCHRONIZATION,
        f"{_waits(sites[0])}{_others(sites)}. The GPU then runs out of work: without this a step would "
        f"take about {milliseconds(step_s - cost_s)} instead of {in_ms(step_s)}.",
        cost_s,
        estimated=True,
        root=True,
        leads=cost_s > _DISTORTS * step_s,
        terms=HOST_TERMS,
        evidence=tuple(_evidence(site) for site in sites[:_SHOWN]),
        advice=tuple(_host_synchronization_advice(site) for site in sites[:_SHOWN]),
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


def _host_synchronization_advice(site: SyncSite) -> Advice:
    if not site.file:
        return Advice(label=f"avoid {site.operation} in the step, or use it only every 100 steps")
    instead = "keep the value on the GPU (torch.where, masks), or read it only every 100 steps"
    return Advice(label=f"{site.location}: {instead}")


# ---- Host-bound: the GPU waits for the host to launch kernels, not for data, peers or its own results


HOST_BOUND = "host-bound"
_WORTH = 0.05  # of a step: a healthy job's GPU waits for its host now and then
_CAUSES = 0.2  # of the cost: then the cause of the many launches is a finding, and comes before this
_BUSY = 0.7
_SHORT_STEP_S = 0.02
_ONE_CORE = 0.9  # of a core, all the time


def host_bound_rule(facts: StepFacts) -> Finding | Abstention | None:
    if not facts.trial.on_gpu:
        return None
    if facts.recording is None or facts.replay is None:
        return _by_telemetry(facts)
    cost_s, kernels = facts.bounded(facts.replay.host_cost_s, *HOST_TERMS), facts.recording.kernels
    if kernels is None or cost_s < _WORTH * facts.step_s:
        return None
    # Why the host cannot run ahead is a separate finding.
    why_s = (facts.wait_cost_s, requests_cost_s(facts), pauses_cost_s(facts), uncompiled_cost_s(facts))
    launches_s = (fused_cost_s(facts), recomputation_cost_s(facts))
    median = facts.recording.kernel_median_s
    length = "" if median is None else f" of {median * 1e6:.0f} µs (median)"
    return facts.finding(
        HOST_BOUND,
        f"The GPU waits for the host to launch {kernels:,.0f} kernels per step{length}: with a fast "
        f"enough host a step would take about {milliseconds(facts.timed_s - cost_s)} instead of "
        f"{in_ms(facts.timed_s)}.",
        cost_s,
        estimated=True,
        symptom=any(map(facts.is_worth, why_s)) or max(launches_s) > _CAUSES * cost_s,
        terms=HOST_TERMS,
        evidence=(
            Evidence(name="kernels", value=kernels, unit="per step", source="trace"),
            *(
                [Evidence(name="kernel", value=median * 1e6, unit="µs", source="trace, the median")]
                if median is not None
                else []
            ),
        ),
        advice=_host_bound_advice(facts),
    )


def _host_bound_advice(facts: StepFacts) -> tuple[Advice, ...]:
    return (
        *advise(facts, "replay kernels as CUDA graphs", "compile", "reduce-overhead"),
        *advise(facts, "a larger batch", batch_name(facts)),
    )


def _by_telemetry(facts: StepFacts) -> Finding | None:
    """Without a recording: a GPU that is idle while a core is busy all the time, on one rank."""
    telemetry = facts.configuration.telemetry
    busy, cores = telemetry.gpu_utilization, telemetry.rank_busy_cores
    if facts.ranks > 1 or busy is None or cores is None or busy > _BUSY or cores < _ONE_CORE:
        return None
    if facts.step_s > _SHORT_STEP_S:
        return None
    return facts.finding(
        HOST_BOUND,
        f"With one rank alone the GPU is {percent(busy)} busy while a CPU core is busy all the time: the "
        "host cannot launch such short kernels fast enough.",
        None,
        evidence=(
            Evidence(name="GPU busy", value=busy, source="NVML"),
            Evidence(name="busy cores", value=cores, source="/proc"),
            Evidence(name="step", value=facts.step_s, unit="s", source="one rank alone"),
        ),
        advice=_host_bound_advice(facts),
    )
