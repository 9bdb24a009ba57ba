"""The answer of `predict`: forecasts for all sizes, what changes would do, and what contradicts them."""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scalescope.analysis.configurations import SAMPLES, Configuration, configurations
from scalescope.analysis.prediction.collective_times import CollectiveTime, CollectiveTimes
from scalescope.analysis.prediction.forecast import Prediction, Range, Worth, forecast, most_worth, worth_of
from scalescope.analysis.prediction.intervals import LedgerResidual, residuals_of
from scalescope.analysis.prediction.jobs import JobInputs, MissingInput, inputs_of
from scalescope.analysis.prediction.setup import RankLayout, Setup
from scalescope.errors import BadInput
from scalescope.results.ledger import LedgerEntry
from scalescope.results.run import Run

# ---- Contradiction: whether a run has measured something else than what would be predicted for it


_LEAST_DIFFERENCE = math.log(1.1)  # less is not called a contradiction, however narrow the interval is


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A measured step outside of the interval that was predicted for it."""

    ranks: int
    measured_s: float
    predicted_s: Range
    had_other_load: bool  # while it, or the one rank that it is predicted from, was measured


def contradiction_of(own: JobInputs | None, residuals: Sequence[LedgerResidual] = ()) -> Contradiction | None:
    """The smallest number of ranks at which a job contradicts what is predicted for it.

    `own` is the job as it was measured (`JobInputs.as_measured`), whatever else is asked for.
    """
    if own is None:
        return None
    for ranks, measured_s in measured_steps(own).items():
        setup = own.job.setup(ranks, own.layout)
        predicted_s = forecast(own, setup, without_own(own, ranks, residuals)).step_s
        if is_contradicted(measured_s, predicted_s):
            return Contradiction(
                ranks=ranks,
                measured_s=measured_s,
                predicted_s=predicted_s,
                had_other_load=_had_other_load(own, ranks),
            )
    return None


def is_contradicted(measured_s: float, predicted_s: Range) -> bool:
    """Outside of the interval, and by more than is worth a word."""
    is_outside = not predicted_s.low <= measured_s <= predicted_s.high
    return is_outside and abs(math.log(measured_s / predicted_s.value)) > _LEAST_DIFFERENCE


def measured_steps(inputs: JobInputs, *, disturbed: bool = True) -> dict[int, float]:
    """Measured step times of the job by number of ranks, beyond one; or only those that nothing disturbed."""
    known = _configurations(inputs.run)
    return {
        size: known[trial_id].step_time_s.value
        for size, trial_id in sorted(inputs.job.measured.items())
        if trial_id in known and (disturbed or not known[trial_id].is_disturbed)
    }


def without_own(inputs: JobInputs, size: int, residuals: Sequence[LedgerResidual]) -> list[LedgerResidual]:
    """The errors of other measurements: that of the same one would make the interval look right."""
    own_trial, began = inputs.job.measured.get(size), run_began(inputs.run)
    return [residual for residual in residuals if (residual.trial_id, residual.run) != (own_trial, began)]


def run_began(run: Run) -> str:
    """When a run began, which names it wherever its folder lies."""
    return run.record.started_at or min((result.started_at for result in run.results), default="")


def _had_other_load(inputs: JobInputs, ranks: int) -> bool:
    known = _configurations(inputs.run)
    trials = (inputs.job.measured[ranks], *(profile.trial.trial_id for profile in inputs.job.profiles))
    return any(known[trial_id].had_other_load for trial_id in trials if trial_id in known)


def _configurations(run: Run) -> dict[str, Configuration]:
    return {member.trial.trial_id: member for member in configurations(run.results)}


# ---- What if: single changes of a setup, ranked by the speed that they are predicted to gain


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
    gain: float  # in samples per second, relative to the unchanged setup
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


# ---- Gains: what moving a setting of a measured trial is predicted to gain


def gains_by_trial(run: Run, entries: Iterable[LedgerEntry] = ()) -> dict[str, dict[str, float]]:
    """By trial and setting the gain of the best value; empty where nothing can be predicted, and
    for jobs that contradict their prediction."""
    gains: dict[str, dict[str, float]] = {}
    residuals = residuals_of(entries)
    with contextlib.suppress(BadInput):
        for inputs in inputs_of(run):
            if _is_contradicted(inputs, residuals):
                continue
            for size, trial_id in inputs.job.measured.items():
                with contextlib.suppress(BadInput):
                    for change in what_if(inputs, inputs.job.setup(size, inputs.layout)):
                        of_trial = gains.setdefault(trial_id, {})
                        if change.setting is not None:
                            of_trial.setdefault(change.setting, change.gain)  # the largest comes first
    return gains


def _is_contradicted(inputs: JobInputs, residuals: Sequence[LedgerResidual]) -> bool:
    with contextlib.suppress(BadInput):
        return contradiction_of(inputs.as_measured(), residuals) is not None
    return False


# ---- Answer: every row that was asked for of one job, with what is worth it and what would help


_LARGEST_DEFAULT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRequest:
    """What to predict; what is None stays as the run has it."""

    world_sizes: tuple[int, ...] = ()  # empty: those measured, and doublings of the largest
    layout: RankLayout | None = None
    backend: str | None = None
    batch: int | None = None
    strategy: str | None = None
    comm_hook: str | None = None
    accumulation_steps: int | None = None
    bucket_cap_mb: float | None = None
    gpu_hour_price: float | None = None
    what_if: bool = False

    @property
    def changes_setup(self) -> bool:
        """Whether anything differs from what the run has measured, besides the number of ranks."""
        changes = (self.batch, self.strategy, self.comm_hook, self.accumulation_steps, self.bucket_cap_mb)
        return any(change is not None for change in changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionAnswer:
    """The predictions for one job, by number of ranks."""

    inputs: JobInputs
    predictions: tuple[Prediction, ...]
    worth: tuple[Worth, ...]
    unit: str = SAMPLES  # what is counted, as its measurements call it
    contradiction: Contradiction | None = None  # then nothing beyond what was measured is predicted
    measured_s: Mapping[int, float] = field(default_factory=dict)  # step times by number of ranks
    measured_efficiency: Mapping[int, float] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    changed_at: int | None = None  # the number of ranks that the changes are predicted for

    def beyond(self, ranks: int) -> "PredictionAnswer":
        """Only the rows of more ranks."""
        pairs = zip(self.predictions, self.worth, strict=True)
        kept = [pair for pair in pairs if pair[1].ranks > ranks]
        return dataclasses.replace(
            self, predictions=tuple(row for row, _ in kept), worth=tuple(worth for _, worth in kept)
        )

    @property
    def most_measured(self) -> int:
        """The largest number of ranks that was measured."""
        return max(self.inputs.job.measured, default=1)

    @property
    def most_worth(self) -> int | None:
        """How many ranks are worth it; None where none are, or the run contradicts its prediction."""
        return None if self.contradiction else most_worth(self.worth)


def answer(
    inputs: JobInputs, request: PredictionRequest, residuals: Sequence[LedgerResidual] = ()
) -> PredictionAnswer:
    """Predict every number of ranks that was asked for; only what was measured where that contradicts it."""
    own = inputs.as_measured()
    contradiction = contradiction_of(own, residuals)
    if contradiction is not None and own is not None:
        inputs = own
        sizes = tuple(size for size in own.job.measured if size <= contradiction.ranks)
        request = PredictionRequest(world_sizes=sizes)
    if request.strategy is not None:
        inputs = inputs.changed(job=inputs.job.with_strategy(request.strategy))
    sizes = request.world_sizes or default_sizes(inputs.job.measured)
    predictions = tuple(
        forecast(
            inputs, _setup(inputs, request, size), without_own(inputs, size, residuals), batch=request.batch
        )
        for size in sorted(set(sizes))
    )
    measured_s = {} if request.changes_setup else measured_steps(inputs)
    largest = predictions[-1].setup
    return PredictionAnswer(
        inputs=inputs,
        predictions=predictions,
        worth=worth_of(predictions, request.gpu_hour_price),
        unit=_unit(inputs),
        contradiction=contradiction,
        measured_s=measured_s,
        measured_efficiency=_efficiencies(predictions, measured_s),
        changes=what_if(inputs, largest, batch=request.batch) if request.what_if else (),
        changed_at=largest.world_size if request.what_if else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What can be predicted of a run beside its measurements, or what is missing for that."""

    answers: tuple[PredictionAnswer, ...] = ()
    missing: str | None = None


def predicted_of(run: Run, entries: Iterable[LedgerEntry]) -> Predicted:
    """The sizes that were measured and larger ones, of every job that can be predicted."""
    residuals = residuals_of(entries)
    try:
        all_inputs = inputs_of(run)
    except MissingInput as error:
        return Predicted(missing=error.missing)
    answers = []
    for inputs in all_inputs:
        sizes = (*inputs.job.measured, *larger_sizes(inputs.job.measured))
        with contextlib.suppress(BadInput):  # a strategy that cannot be predicted, a batch without a profile
            answers.append(answer(inputs, PredictionRequest(world_sizes=sizes), residuals))
    return Predicted(answers=tuple(answers))


def default_sizes(measured: Iterable[int]) -> tuple[int, ...]:
    """What was measured, and doublings from there on."""
    sizes = sorted(measured) or [2]
    while sizes[-1] < _LARGEST_DEFAULT:
        sizes.append(sizes[-1] * 2)
    return tuple(sizes)


def larger_sizes(measured: Iterable[int]) -> tuple[int, ...]:
    """Twice, four and eight times the largest number of ranks that was measured."""
    most = max(measured, default=1)
    return (2 * most, 4 * most, 8 * most)


def ledger_entries(
    inputs: JobInputs, exposed_s: Mapping[str, float], residuals: Sequence[LedgerResidual] = ()
) -> tuple[LedgerEntry, ...]:
    """What would have been predicted for the sizes that were measured, from smaller sizes alone.

    Once with times of collectives of the same size, where there are any, and once with those of fewer ranks.
    `exposed_s` has measured exposed communication by trial.
    """
    entries: list[LedgerEntry] = []
    for size, measured_s in measured_steps(inputs, disturbed=False).items():
        others = without_own(inputs, size, residuals)
        known = (inputs.unmeasured(size), inputs.before(size))
        predictions = {
            (prediction.kind, prediction.curve_ranks): prediction
            for before in known
            if before is not None
            for prediction in (forecast(before, inputs.job.setup(size, inputs.layout), others),)
        }
        trial_id = inputs.job.measured[size]
        entries += [
            _entry(inputs, prediction, measured_s, exposed_s.get(trial_id))
            for prediction in predictions.values()
        ]
    return tuple(entries)


def _setup(inputs: JobInputs, request: PredictionRequest, size: int) -> Setup:
    setup = inputs.job.setup(size, request.layout or inputs.layout)
    names = ("backend", "comm_hook", "accumulation_steps", "bucket_cap_mb")
    asked = {name: getattr(request, name) for name in names}
    return dataclasses.replace(setup, **{name: value for name, value in asked.items() if value is not None})


def _unit(inputs: JobInputs) -> str:
    """What the measurements of the job count."""
    trials = {inputs.job.trial.trial_id, *(known.trial.trial_id for known in inputs.job.profiles)}
    measured = (item for item in configurations(inputs.run.results) if item.trial.trial_id in trials)
    return next((item.unit for item in measured), SAMPLES)


def _efficiencies(predictions: Iterable[Prediction], measured_s: Mapping[int, float]) -> dict[int, float]:
    """Measured efficiency against the predicted step of one rank, which is its measured profile."""
    return {
        size: prediction.efficiency.value * prediction.step_s.value / measured_s[size]
        for prediction in predictions
        if (size := prediction.setup.world_size) in measured_s
    }


def _entry(
    inputs: JobInputs, prediction: Prediction, measured_s: float, exposed_s: float | None
) -> LedgerEntry:
    run, trial_id = inputs.run, inputs.job.measured[prediction.setup.world_size]
    launches = [result for result in run.results if result.trial_id == trial_id]
    return LedgerEntry(
        kind=prediction.kind,
        world_size=prediction.setup.world_size,
        curve_ranks=prediction.curve_ranks,
        predicted_s=prediction.step_s.value,
        low_s=prediction.step_s.low,
        high_s=prediction.step_s.high,
        measured_s=measured_s,
        predicted_exposed_s=prediction.exposed_s.value,
        measured_exposed_s=exposed_s,
        setup={"workload": inputs.job.trial.workload, **dataclasses.asdict(prediction.setup)},
        run=run_began(run),
        trial_id=trial_id,
        environment_id=inputs.machine,
        date=max((result.started_at for result in launches), default=""),
    )
