"""Copy-bound: steps wait for batches that are ready but not yet on the GPU, or copy from pageable memory."""

from scalescope.analysis.training.step_waterfall import COPIES, IDLE_INPUT
from scalescope.diagnose.advice import advise
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import StepFacts
from scalescope.experiment.ablations import has_loader
from scalescope.quantities import in_ms, percent
from scalescope.results.traces import step_parts

RULE = "copy-bound"
_READY = 0.3  # of the wait: a loader that takes less is not what steps wait for
_LEAST_COPY = 1 << 16  # bytes: the time of smaller copies is not that of their bytes
_BEYOND = 1.5  # times the batch's bytes: the rest is copied by the model itself


def rule(facts: StepFacts) -> Finding | Abstention | None:
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
        RULE,
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
        RULE,
        f"Copies that nothing hides take about {in_ms(cost_s)} per step.{_rate_text(facts)}",
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
