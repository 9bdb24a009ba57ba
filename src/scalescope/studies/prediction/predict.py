"""`predict`: what the jobs of a stored run would do on other numbers of ranks; nothing is measured."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalescope.analysis.prediction.forecasts.answer import PredictionAnswer, PredictionRequest, answer
from scalescope.analysis.prediction.forecasts.intervals import residuals_of
from scalescope.analysis.prediction.inputs import MissingInput, inputs_of
from scalescope.analysis.prediction.measured_times import MeasuredTimes
from scalescope.errors import BadInput
from scalescope.report.consistency import disagreement_section, prediction_disagreements
from scalescope.report.prediction.as_json import answer_json
from scalescope.report.prediction.ledger import ledger_json, ledger_section
from scalescope.report.prediction.sections import prediction_sections
from scalescope.report.section import Section
from scalescope.results.ledger import ledger_file, read_ledger
from scalescope.results.run import Run, load_run
from scalescope.results.run_folder import is_run_folder
from scalescope.studies.prediction.network import network_of
from scalescope.studies.runs.predicting import remember_predictions


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictReport:
    """What to show and what to write."""

    sections: tuple[Section, ...]
    data: dict[str, Any]
    warnings: tuple[str, ...] = ()


def predict(path: Path, request: PredictionRequest, network: str | None = None) -> PredictReport:
    """Predict every job of a run; what the run itself has measured goes to the ledger."""
    run = _load(path)
    times = None if network is None else network_of(network)
    if times is not None and not isinstance(times, MeasuredTimes):  # named networks are NCCL's
        request = dataclasses.replace(request, backend="nccl")
    ledger = read_ledger()
    residuals = residuals_of(ledger.entries)
    try:
        all_inputs = inputs_of(run, times)
    except MissingInput as error:
        raise BadInput(_with_damage(str(error), run)) from None
    answers = _answers([answer(inputs, request, residuals) for inputs in all_inputs], request)
    warnings = (*run.warnings, *(remember_predictions(run) or ledger.warnings))
    as_measured = network is None and not request.changes_setup and request.layout is None
    return PredictReport(
        sections=(
            *disagreement_section(prediction_disagreements(answers) if as_measured else ()),
            *(section for each in answers for section in prediction_sections(each)),
        ),
        data={"run": str(path), "network": network, "predictions": [answer_json(each) for each in answers]},
        warnings=warnings,
    )


def show_ledger() -> PredictReport:
    """Errors by kind, and how often intervals held."""
    ledger, path = read_ledger(), ledger_file()
    file = None if path is None else str(path)
    return PredictReport(sections=(ledger_section(ledger, file),), data=ledger_json(ledger, file))


def _answers(answers: list[PredictionAnswer], request: PredictionRequest) -> list[PredictionAnswer]:
    """With one batch, strategy or hook asked for, jobs that differ in it alone are one."""
    if not request.changes_setup:
        return answers
    distinct = {tuple(prediction.step_s for prediction in each.predictions): each for each in answers}
    return list(distinct.values())


def _load(path: Path) -> Run:
    if not path.exists() and path.name == "latest":
        raise BadInput(
            f"predict: {path}: there is no run yet; name a run folder, or make one: scalescope scale"
        )
    if not path.exists():
        raise BadInput(f"predict: {path}: no such run folder; scalescope list shows all runs")
    if not is_run_folder(path):
        raise BadInput(f"predict: {path} is not a run folder; scalescope list shows the runs there are")
    run = load_run(path)
    if not run.of_status("ok"):
        raise BadInput(_with_damage(f"predict: {path} has no successful launch", run))
    return run


def _with_damage(message: str, run: Run) -> str:
    """The message with the first thing that could not be read: it may be what is missing."""
    return f"{message} ({run.warnings[0]})" if run.warnings else message
