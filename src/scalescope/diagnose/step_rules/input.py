"""Rules about input: samples that come too late, and copies to the GPU."""

from dataclasses import dataclass

from scalescope.analysis.training.step_waterfall import COPIES, IDLE_INPUT, INPUT
from scalescope.diagnose.advice import advise, advise_more
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import StepFacts
from scalescope.experiment.explanations import has_loader
from scalescope.quantities import counted, in_ms, percent
from scalescope.results.traces import step_parts

# ---- Copy-bound: steps wait for batches that are ready but not yet on the GPU, or copy from pageable memory


COPY_BOUND = "copy-bound"
_READY = 0.3  # of the wait: a loader that takes less is not what steps wait for
_LEAST_COPY = 1 << 16  # bytes: the time of smaller copies is not that of their bytes
_BEYOND = 1.5  # times the batch's bytes: the rest is copied by the model itself


def copy_bound_rule(facts: StepFacts) -> Finding | Abstention | None:
    if not facts.trial.on_gpu:
        return None
    return _blocking(facts) if waits_for_copies(facts) else _pageable(facts)


def waits_for_copies(facts: StepFacts) -> bool:
    """Whether preloaded batches would be faster though the loader has them ready."""
    wait, loading = facts.input_wait_s, facts.loading
    if not facts.trial.on_gpu or wait is None or loading is None:
        return False
    if not facts.is_worth(wait.value) or (wait.low is not None and wait.low <= 0.0):
        return False
    if loading.wait_s is None or loading.copy_s is None:
        return False
    return loading.wait_s * facts.trial.accumulation_steps <= _READY * wait.value


def _blocking(facts: StepFacts) -> Finding:
    wait, loading = facts.input_wait_s, facts.loading
    assert wait is not None and loading is not None
    loader_s, copy_s = loading.wait_s or 0.0, loading.copy_s or 0.0
    share = wait.value / facts.step_s
    return facts.finding(
        COPY_BOUND,
        f"Batches are ready (the loader takes {in_ms(loader_s)}), but copying them blocks the "
        f"host for {in_ms(copy_s)}, including kernels that are still queued; with batches already on "
        f"the GPU a step would be {percent(share)} shorter.{_rate_text(facts)}",
        wait.value,
        root=True,
        terms=(COPIES, IDLE_INPUT),
        evidence=(
            Evidence(name="copying", value=copy_s, unit="s", source="the host's clock around it"),
            Evidence(name="waiting", value=loader_s, unit="s", source="the host's clock around it"),
            Evidence(name="input", value=wait.value, unit="s", source="step minus preloaded samples"),
            *_pageable_evidence(facts),
        ),
        advice=_batch_advice(facts),
    )


def _pageable(facts: StepFacts) -> Finding | None:
    """By a recording: copies from pageable memory that nothing hides."""
    recording, rate = facts.recording, _rate(facts)
    if recording is None or rate is None:
        return None
    cost_s = min(recording.pageable_s or 0.0, _exposed_s(facts)) * _unmeasured_share(facts)
    if not facts.is_worth(cost_s):
        return None
    return facts.finding(
        COPY_BOUND,
        f"Copies not hidden by compute take about {in_ms(cost_s)} per step.{_rate_text(facts)}",
        cost_s,
        root=True,
        estimated=True,
        terms=(COPIES,),
        evidence=_pageable_evidence(facts),
        advice=(
            *(() if facts.input_wait_s is not None else _batch_advice(facts)),
            *(_model_advice() if _copies_in_model(facts) else ()),
        ),
    )


def _exposed_s(facts: StepFacts) -> float:
    """All copies during which the GPU does nothing else."""
    if facts.waterfall is not None and facts.waterfall.term(COPIES) is not None:
        return facts.waterfall.time_s(COPIES)
    return 0.0 if facts.recording is None else facts.recording.parts.get(step_parts.COPIES, 0.0)


def _unmeasured_share(facts: StepFacts) -> float:
    """Of the bytes, those that preloaded batches do not account for: what these cost is measured."""
    batch, recording = _batch_bytes(facts), facts.recording
    if facts.input_wait_s is None:
        return 1.0
    if batch is None or recording is None or not recording.pageable_bytes:
        return 0.0
    return max(0.0, 1.0 - batch / recording.pageable_bytes)


def _copies_in_model(facts: StepFacts) -> bool:
    """Whether more is copied than batches have, or batches are not what is copied from pageable memory."""
    batch, recording = _batch_bytes(facts), facts.recording
    if recording is None or not recording.pageable_bytes:
        return False
    if not has_loader(facts.trial) or (facts.loading is not None and facts.loading.pinned):
        return True
    return batch is not None and recording.pageable_bytes > _BEYOND * batch


def _batch_bytes(facts: StepFacts) -> float | None:
    """Of all batches of a step; None is unknown."""
    loading = facts.loading
    if loading is None or loading.batch_bytes is None:
        return None
    return float(loading.batch_bytes * facts.trial.accumulation_steps)


def _rate(facts: StepFacts) -> float | None:
    """Bytes per second of copies from pageable memory; None where there are none, or only small ones."""
    recording = facts.recording
    if recording is None or not recording.pageable_s or not recording.pageable_copies:
        return None
    size = recording.pageable_bytes or 0.0
    return size / recording.pageable_s if size >= _LEAST_COPY * recording.pageable_copies else None


def _rate_text(facts: StepFacts) -> str:
    rate, recording = _rate(facts), facts.recording
    if rate is None or recording is None or recording.pageable_bytes is None:
        return ""
    return (
        f" {recording.pageable_bytes / 1e6:.1f} MB per step are copied from pageable memory at "
        f"{rate / 1e9:.1f} GB/s; page-locked memory usually reaches several times that."
    )


def _pageable_evidence(facts: StepFacts) -> tuple[Evidence, ...]:
    rate, recording = _rate(facts), facts.recording
    if rate is None or recording is None:
        return ()
    size, time_s, copies = recording.pageable_bytes, recording.pageable_s, recording.pageable_copies
    assert size is not None and time_s is not None and copies is not None
    return (
        Evidence(name="pageable copies", value=copies, unit="per step", source="recorded steps"),
        Evidence(name="pageable bytes", value=size, unit="bytes", source="recorded steps"),
        Evidence(name="pageable time", value=time_s, unit="s", source="recorded steps"),
        Evidence(name="rate", value=rate, unit="bytes/s", source="recorded steps"),
    )


def _batch_advice(facts: StepFacts) -> tuple[Advice, ...]:
    if not has_loader(facts.trial):
        return ()
    if facts.loading is not None and facts.loading.is_iterable:
        return (
            Advice(label="yield batches in page-locked memory: tensor.pin_memory()"),
            *advise(facts, "copy the next batch while the GPU computes", "prefetch_stream", True),
        )
    return (
        *advise(facts, "copy the next batch while the GPU computes", "prefetch_stream", True),
        *advise(facts, "copy from page-locked memory", "pin_memory", True),
    )


def _model_advice() -> tuple[Advice, ...]:
    return (
        Advice(
            label="in the model, create tensors on the GPU (device=...), or copy them with "
            "tensor.pin_memory().to(device, non_blocking=True)"
        ),
    )


# ---- Input-bound: steps wait for samples


INPUT_BOUND = "input-bound"
_MOST_WORKERS = 64  # worth advising
_SLOWER_ALONE = 1.2  # times what the rank takes for a batch: worth a word
_UNEVEN = 0.5  # of the step
_PREFETCH = 8


def input_bound_rule(facts: StepFacts) -> Finding | Abstention | None:
    wait = _wait(facts)
    if wait is None or not facts.is_worth(wait.time_s) or waits_for_copies(facts):
        return None
    plan = _plan(facts, wait.time_s)
    return facts.finding(
        INPUT_BOUND,
        " ".join(
            filter(
                None, (_wait_text(facts, wait), _one_rank_waits_too(facts, wait), _cause_text(facts, plan))
            )
        ),
        wait.time_s,
        root=True,
        terms=(IDLE_INPUT, INPUT, COPIES),
        estimated=wait.estimated,
        evidence=(
            Evidence(name="input", value=wait.time_s, unit="s", source=wait.source),
            *_loader_evidence(facts),
        ),
        advice=_advice(facts, plan, wait.time_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    """What waiting for samples adds to a step, and how that is known."""

    time_s: float
    source: str
    estimated: bool = False


def _wait(facts: StepFacts) -> _Wait | None:
    measured = facts.input_wait_s
    if measured is not None:
        if measured.low is None or measured.low > 0.0:
            return _Wait(time_s=measured.value, source="step minus the same with preloaded samples")
        # Two launches have an interval that includes zero nearly always; the clock is then the surer witness.
        clocked_s = _clocked_s(facts)
        return None if clocked_s is None else _by_clock(min(clocked_s, measured.value))
    waterfall = facts.waterfall
    for name in (IDLE_INPUT, INPUT):
        term = None if waterfall is None else waterfall.term(name)
        if term is not None and term.source == "trace":
            return _Wait(time_s=term.time_s.value, source="recorded steps", estimated=True)
        if term is not None:
            return _by_clock(term.time_s.value)
    clocked_s = _clocked_s(facts)
    return None if clocked_s is None else _by_clock(clocked_s)


def _by_clock(time_s: float) -> _Wait:
    return _Wait(time_s=time_s, source="the host's clock around it", estimated=True)


def _clocked_s(facts: StepFacts) -> float | None:
    """How long the host waits for samples; on a GPU kernels may run meanwhile, so that says nothing."""
    times_s = [activity.host_s["input"] for activity in facts.activities if "input" in activity.host_s]
    return None if facts.trial.on_gpu else max(times_s, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Loader processes: how many there are, how many would hide the wait, and how many can be kept busy."""

    workers: int
    needed: int | None  # None is unknown
    most: int | None  # None is unknown

    @property
    def hides(self) -> bool | None:
        """Whether enough processes can be kept busy; None where that is unknown."""
        return None if self.needed is None else self.most is None or self.needed <= self.most

    @property
    def advised(self) -> int | None:
        """How many to try: as many as are needed, or twice as many; None where there are as many already."""
        wanted = max(2, 2 * self.workers)
        if self.needed is not None and self.needed > self.workers:
            wanted = self.needed
        wanted = min(wanted, _MOST_WORKERS, *(() if self.most is None else (self.most,)))
        return wanted if wanted > self.workers else None


def _plan(facts: StepFacts, wait_s: float) -> _Plan:
    loading = facts.loading
    known = None if loading is None else loading.workers
    batch_s = (facts.step_s - wait_s) / facts.trial.accumulation_steps
    workers = (facts.trial.num_workers or 0) if known is None else known
    needed = None if loading is None else loading.workers_to_hide(batch_s)
    return _Plan(workers=workers, needed=needed, most=_most_workers(facts, workers))


def _rank_cores(facts: StepFacts) -> int | None:
    """Cores that a rank and its loader have for themselves; None is unknown."""
    known = [] if facts.loading is None or facts.loading.cores is None else [facts.loading.cores]
    if facts.cores is not None:
        known.append(max(1, facts.cores // facts.ranks_per_node))
    return min(known, default=None)


def _most_workers(facts: StepFacts, workers: int) -> int | None:
    """How many processes the cores keep busy: more than there are cores where they wait for storage."""
    cores = _rank_cores(facts)
    if cores is None:
        return None
    computes = _computes(facts, workers)
    return cores if computes is None else max(cores, int(cores / max(computes, 1e-3)))


def _computes(facts: StepFacts, workers: int) -> float | None:
    """The share of preparing a batch in which a core computes: by the processes, or at most what all cores
    of the host did."""
    if facts.loading is not None and facts.loading.computes is not None:
        return facts.loading.computes
    busy = facts.configuration.telemetry.host_busy_cores
    return None if busy is None else min(1.0, busy / (facts.ranks_per_node * max(1, workers)))


def _wait_text(facts: StepFacts, wait: _Wait) -> str:
    share = min(1.0, wait.time_s / facts.step_s)
    if wait.estimated:
        return f"Steps wait about {in_ms(wait.time_s)} for samples."
    return (
        f"Steps wait {in_ms(wait.time_s)} for samples; with preloaded samples a step would be "
        f"{percent(share)} shorter."
    )


def _one_rank_waits_too(facts: StepFacts, wait: _Wait) -> str:
    """Whether more ranks made it worse, where that was measured."""
    alone_s = facts.alone_wait_s
    if facts.ranks == 1 or alone_s is None or alone_s < wait.time_s / 2.0:
        return ""
    return "One rank alone waits as well, so this costs speed but not scaling."


def _cause_text(facts: StepFacts, plan: _Plan) -> str:
    loading = facts.loading
    if loading is None or not loading.prepare_s or loading.fetch_s is None or loading.collate_s is None:
        return ""
    fetching = loading.fetch_s / loading.prepare_s
    parts = f"{percent(fetching)} getting samples, {percent(1.0 - fetching)} collating"
    text = f"Preparing a batch takes {in_ms(loading.prepare_s)} ({parts})"
    cores = _rank_cores(facts)
    has = "in the rank itself" if not plan.workers else _processes(plan.workers)
    on = "" if cores is None else f" on {counted(cores, 'core')}"
    text = f"{text} {has}{on}"
    if plan.needed is None or plan.needed <= plan.workers:
        return f"{text}.{_room_text(facts, plan)}"
    if (loading.process_s or 0.0) > _SLOWER_ALONE * loading.prepare_s:
        text = f"{text}, and {in_ms(loading.process_s or 0.0)} on one thread, which a loader process has"
    if plan.hides:
        needed = counted(plan.needed, "loader process")
        return f"{text}; {needed} would hide it.{_room_text(facts, plan)}"
    assert plan.most is not None  # otherwise they would hide it
    most = counted(plan.most, "process")
    return f"{text}; even {most} would not hide it, so samples must become cheaper."


def _processes(workers: int) -> str:
    return "in its loader process" if workers == 1 else f"in each of {workers} loader processes"


def _room_text(facts: StepFacts, plan: _Plan) -> str:
    """Where /dev/shm has no room for the batches that more processes prepare ahead."""
    fits = None if facts.loading is None else facts.loading.batches_that_fit
    if fits is None or not _lacks_room(facts, plan):
        return ""
    return f" /dev/shm has room for only {counted(fits, 'more batch')}."


def _lacks_room(facts: StepFacts, plan: _Plan) -> bool:
    loading, more = facts.loading, plan.advised
    if loading is None or more is None or loading.batches_that_fit is None:
        return False
    return (more - plan.workers) * (loading.prefetch_factor or 2) > loading.batches_that_fit


def _restarts_s(facts: StepFacts) -> float:
    """What starting loader processes anew for every epoch adds to a step."""
    loading = facts.loading
    if loading is None or not loading.workers or loading.persistent is not False:
        return 0.0
    return (loading.restarts or 0) * (loading.first_batch_s or 0.0) / facts.configuration.measured_steps


def _loader_evidence(facts: StepFacts) -> tuple[Evidence, ...]:
    loading = facts.loading
    if loading is None:
        return ()
    where = "clocks in the processes that prepare batches"
    rows = (
        ("getting samples", loading.fetch_s, "s", where),
        ("collating", loading.collate_s, "s", where),
        ("a batch on one thread", loading.process_s, "s", "the host's clock around it"),
        ("processor time of a batch", loading.cpu_s, "s", where),
        ("loader processes", loading.workers, "", "settings"),
        ("cores of the rank", loading.cores, "", "the rank's affinity"),
        ("first batch", loading.first_batch_s, "s", "the host's clock around it"),
        ("free in /dev/shm", loading.shm_free_bytes, "bytes", "the file system"),
    )
    return tuple(
        Evidence(name=name, value=value, unit=unit, source=source)
        for name, value, unit, source in rows
        if value is not None
    )


def _advice(facts: StepFacts, plan: _Plan, wait_s: float) -> tuple[Advice, ...]:
    if facts.loading is not None and facts.loading.is_iterable:
        return (
            Advice(label="return a DataLoader(..., num_workers=2): other processes then prepare batches"),
        )
    if facts.trial.is_command and not has_loader(facts.trial):
        return (Advice(label="in the script, load batches with a DataLoader(..., num_workers=2)"),)
    more = plan.advised
    # By a setting, which others may then follow; of a command, whose script may have them, in any case.
    has_processes = bool(plan.workers if facts.trial.is_command else facts.trial.num_workers)
    restarts_s = _restarts_s(facts) if has_processes else 0.0
    # More batches ahead even out what differs between them; they do not make all of them cheaper.
    evens_out = has_processes and wait_s < _UNEVEN * facts.step_s
    ahead = advise_more(facts, "prefetch more batches", "prefetch_factor", _PREFETCH) if evens_out else ()
    keep = advise(facts, "keep loader processes between epochs", "persistent_workers", True)
    return (
        *(keep if restarts_s > wait_s / 2.0 else ()),
        *(advise(facts, f"{counted(more, 'loader process')} per rank", "num_workers", more) if more else ()),
        *ahead,
        *(keep if 0.0 < restarts_s <= wait_s / 2.0 else ()),
        *_unpinned(facts, plan),
        *(_cheaper(facts) if plan.hides is False or not (more or ahead) else ()),
        *((Advice(label="enlarge /dev/shm (docker run --shm-size)"),) if _lacks_room(facts, plan) else ()),
    )


def _unpinned(facts: StepFacts, plan: _Plan) -> tuple[Advice, ...]:
    """Loader processes inherit the cores that a rank is pinned to, which may be fewer than its share."""
    loading, cores = facts.loading, facts.cores
    if plan.hides is not False or loading is None or loading.cores is None or cores is None:
        return ()
    if cores // facts.ranks_per_node <= loading.cores:
        return ()
    return advise(facts, "let the loader use all cores", "pin_cores", "no")


def _cheaper(facts: StepFacts) -> tuple[Advice, ...]:
    loading = facts.loading
    collates = loading is not None and (loading.collate_s or 0.0) > (loading.fetch_s or 0.0)
    text = "make collate_fn cheaper" if collates else "make samples cheaper: decode or tokenize them once"
    return (Advice(label=text),)
