"""Answer: every row that was asked for of one job, with what is worth it and what would help."""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scalescope.analysis.configurations import SAMPLES, configurations
from scalescope.analysis.prediction.forecasts.contradiction import (
    Contradiction,
    contradiction_of,
    measured_steps,
    run_began,
    without_own,
)
from scalescope.analysis.prediction.forecasts.forecast import forecast
from scalescope.analysis.prediction.forecasts.intervals import LedgerResidual, residuals_of
from scalescope.analysis.prediction.forecasts.what_if import Change, what_if
from scalescope.analysis.prediction.forecasts.worth import Worth, most_worth, worth_of
from scalescope.analysis.prediction.inputs import JobInputs, MissingInput, inputs_of
from scalescope.analysis.prediction.prediction import Prediction
from scalescope.analysis.prediction.setup import RankLayout, Setup
from scalescope.errors import BadInput
from scalescope.results.ledger import LedgerEntry
from scalescope.results.run import Run

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
