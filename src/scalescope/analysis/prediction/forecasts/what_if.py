"""What if: single changes of a setup, ranked by the speed that they are predicted to gain."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from scalescope.analysis.prediction.forecasts.forecast import forecast
from scalescope.analysis.prediction.inputs import JobInputs
from scalescope.analysis.prediction.network import CollectiveTime, CollectiveTimes
from scalescope.analysis.prediction.prediction import Prediction
from scalescope.analysis.prediction.setup import RankLayout, Setup
from scalescope.errors import BadInput

_CAPS_MB = (1.0, 5.0, 25.0, 100.0)
_ACCUMULATION = (2, 4)
_BATCHES = (2, 4)  # times the batch
_STRATEGIES = ("zero1", "fsdp")
_BUCKETED = ("ddp", "zero1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change, what it promises, and whether it trains something else."""

    name: str
    setting: str | None  # that is moved; None where no setting makes it
    flags: tuple[str, ...]  # of `predict`
    prediction: Prediction
    gain: float  # in samples per second, relative to the setup as it is
    changes_job: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    name: str
    inputs: JobInputs
    setup: Setup
    setting: str | None = None
    value: str = ""
    batch: int | None = None
    changes_job: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        return () if self.setting is None else (f"--{self.setting.replace('_', '-')}", self.value)


def what_if(inputs: JobInputs, setup: Setup, *, batch: int | None = None) -> tuple[Change, ...]:
    """Every change that can be predicted, the largest gain first."""
    rate = forecast(inputs, setup, batch=batch).samples_per_s.value
    changes = []
    for candidate in _candidates(inputs, setup, batch):
        try:
            prediction = forecast(candidate.inputs, candidate.setup, batch=candidate.batch)
        except BadInput:  # no times of its collectives, no profile at its batch
            continue
        changes.append(
            Change(
                name=candidate.name,
                setting=candidate.setting,
                flags=candidate.flags,
                prediction=prediction,
                gain=prediction.samples_per_s.value / rate - 1.0,
                changes_job=candidate.changes_job,
            )
        )
    return tuple(sorted(changes, key=lambda change: -change.gain))


def _candidates(inputs: JobInputs, setup: Setup, batch: int | None) -> Iterator[_Candidate]:
    if setup.strategy in _BUCKETED:
        yield from _of_buckets(inputs, setup, batch)
    if setup.strategy != "pipeline":
        yield from _of_batches(inputs, setup, batch)
    yield _Candidate(
        name="a network twice as fast",
        inputs=inputs.changed(times=_TwiceAsFast(inputs.times)),
        setup=setup,
        batch=batch,
    )
    if setup.strategy == "ddp" and not inputs.job.trial.is_command:
        for strategy in _STRATEGIES:
            job = inputs.job.with_strategy(strategy)
            other = dataclasses.replace(setup, strategy=strategy)
            changed = inputs.changed(job=job)
            yield _Candidate(
                name=f"strategy {strategy}",
                setting="strategy",
                value=strategy,
                inputs=changed,
                setup=other,
                batch=batch,
            )


def _of_buckets(inputs: JobInputs, setup: Setup, batch: int | None) -> Iterator[_Candidate]:
    def moved(name: str, setting: str, value: str, setup: Setup) -> _Candidate:
        return _Candidate(name=name, inputs=inputs, setup=setup, setting=setting, value=value, batch=batch)

    if setup.comm_hook == "none":
        hooked = dataclasses.replace(setup, comm_hook="bf16")
        yield moved("gradients sent in bf16", "comm_hook", "bf16", hooked)
    for cap in _CAPS_MB:
        if cap != setup.bucket_cap_mb:
            capped = dataclasses.replace(setup, bucket_cap_mb=cap)
            yield moved(f"buckets of {cap:g} MiB", "bucket_cap_mb", f"{cap:g}", capped)


def _of_batches(inputs: JobInputs, setup: Setup, batch: int | None) -> Iterator[_Candidate]:
    """More samples between exchanges: another optimization, at the same learning rate."""
    if not inputs.job.is_strong:
        for times in _ACCUMULATION:
            steps = setup.accumulation_steps * times
            yield _Candidate(
                name=f"{steps} micro-batches per step",
                setting="accumulation_steps",
                value=str(steps),
                inputs=inputs,
                setup=dataclasses.replace(setup, accumulation_steps=steps),
                batch=batch,
                changes_job=True,
            )
        samples = batch or inputs.job.samples(setup)
        for times in _BATCHES if samples and len(inputs.job.batches) > 1 else ():
            yield _Candidate(
                name=f"batch {samples * times:,} per rank",
                setting="batch_size",
                value=str(samples * times),
                inputs=inputs,
                setup=setup,
                batch=samples * times,
                changes_job=True,
            )


class _TwiceAsFast:
    """The same network, every exchange in half the time."""

    def __init__(self, times: CollectiveTimes) -> None:
        self._times = times

    def time_of(self, collective: str, size_bytes: float, ranks: int, layout: RankLayout) -> CollectiveTime:
        time = self._times.time_of(collective, size_bytes, ranks, layout)
        return dataclasses.replace(time, time_s=time.time_s / 2.0)
