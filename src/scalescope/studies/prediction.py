"""The study of `predict`, and networks by name, curve or run."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, PositiveInt, ValidationError

from scalescope.analysis.comm.curve import Curve
from scalescope.analysis.prediction.answer import PredictionAnswer, PredictionRequest, answer
from scalescope.analysis.prediction.collective_times import CollectiveTimes, MeasuredTimes, measured_times
from scalescope.analysis.prediction.intervals import residuals_of
from scalescope.analysis.prediction.jobs import MissingInput, inputs_of
from scalescope.errors import BadInput
from scalescope.report.chapter import Chapter, answer_chapters
from scalescope.report.comm.nccl_tests import parse, read_output
from scalescope.report.consistency import disagreement_section, prediction_disagreements
from scalescope.report.key_figures import prediction_figures
from scalescope.report.prediction.as_json import answer_json
from scalescope.report.prediction.figures import efficiency_figure, timeline_figure
from scalescope.report.prediction.ledger import ledger_json, ledger_section
from scalescope.report.prediction.sections import prediction_sections, prediction_verdict
from scalescope.report.section import Section
from scalescope.results.ledger import ledger_file, read_ledger
from scalescope.results.run import Run, load_run
from scalescope.results.run_folder import is_run_folder
from scalescope.results.stored.records import problem_of
from scalescope.studies.runs.stored_runs import remember_predictions

# ---- --network: times of collectives by name, from a run, from nccl-tests, or from a curve.json


Points = dict[tuple[str, int], list[tuple[int, float]]]


class _Curve(BaseModel, defer_build=True):
    collective: str
    world_size: int
    points: list[tuple[PositiveInt, Annotated[float, Field(gt=0, allow_inf_nan=False)]]]


class _CurveFile(BaseModel, defer_build=True):
    curves: list[_Curve]


def network_of(text: str) -> CollectiveTimes:
    """A path where there is one, or else the name of a network."""
    path = Path(text)
    try:
        if path.is_dir():
            return _of_run(path)
        if path.is_file():
            return _of_file(path)
    except OSError as error:
        raise BadInput(f"--network {text}: cannot be read: {error.strerror}") from None
    if "/" in text or path.suffix:
        raise BadInput(f"--network {text}: no such file or run folder")
    return _named(text)


def _named(text: str) -> CollectiveTimes:
    from scalescope.analysis.prediction.collective_times import network_named

    return network_named(text)


def _of_run(path: Path) -> CollectiveTimes:
    """The collectives of a run, over the one link that it measured."""
    if not is_run_folder(path):
        raise BadInput(f"--network {path}: not a run folder; scalescope list shows all runs")
    results = load_run(path).results
    links = {result.trial.link for result in results if result.trial.benchmark == "comm"}
    if len(links) > 1:
        words = ", ".join(sorted(link or "no limit" for link in links))
        raise BadInput(f"--network {path}: measured several links ({words}); use a run with one")
    times = measured_times(results, *links)
    if times is None:
        raise BadInput(f"--network {path}: has no times of collectives; scalescope comm measures them")
    return times


def _of_file(path: Path) -> CollectiveTimes:
    text = read_output(path, f"--network {path}")
    curves = _curves_in(text, path)
    if curves is None:
        curves = _curves_of_nccl_tests(text, path)
    times = MeasuredTimes({key: Curve.through(points) for key, points in curves.items()})
    if not times.world_sizes:
        raise BadInput(f"--network {path}: has no curve of two or more ranks")
    return times


def _curves_of_nccl_tests(text: str, path: Path) -> Points:
    points: Points = {}
    for row in parse(text, f"--network {path}"):
        if row.ranks is None:
            raise BadInput(
                f"--network {path}: does not say how many ranks it ran on; "
                f"scalescope comm --import {path} --world-size N creates a run that does"
            )
        points.setdefault((row.collective, row.ranks), []).append((row.size_bytes, row.time_s))
    return points


def _curves_in(text: str, path: Path) -> Points | None:
    """The curves of a curve.json; None where the file is something else."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or "curves" not in raw:
        return None
    try:
        curves = _CurveFile.model_validate(raw).curves
    except ValidationError as error:
        raise BadInput(f"--network {path}: not a curve.json: {problem_of(error, 'the file')}") from None
    points: Points = {}
    for curve in curves:
        points.setdefault((curve.collective, curve.world_size), []).extend(curve.points)
    return points


# ---- `predict`: what the jobs of a stored run would do on other numbers of ranks; nothing is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictReport:
    """What to show and what to write."""

    sections: tuple[Section, ...]
    data: dict[str, Any]
    chapters: tuple[Chapter, ...]  # of its page
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
    disagreements = disagreement_section(prediction_disagreements(answers) if as_measured else ())
    sections = tuple(section for each in answers for section in prediction_sections(each))
    figures = [
        figure
        for number, each in enumerate(answers)
        if each.contradiction is None
        for figure in (efficiency_figure(each, number), timeline_figure(each, number))
    ]
    return PredictReport(
        sections=(*disagreements, *sections),
        chapters=answer_chapters(
            (*disagreements, prediction_verdict(answers)),
            sections,
            figures,
            prediction_figures(answers[0]) if len(answers) == 1 and not disagreements else (),
        ),
        data={"run": str(path), "network": network, "predictions": [answer_json(each) for each in answers]},
        warnings=warnings,
    )


def show_ledger() -> PredictReport:
    """Errors by kind, and how often intervals held."""
    ledger, path = read_ledger(), ledger_file()
    file = None if path is None else str(path)
    sections = (ledger_section(ledger, file),)
    return PredictReport(
        sections=sections, data=ledger_json(ledger, file), chapters=answer_chapters(sections, (), ())
    )


def _answers(answers: list[PredictionAnswer], request: PredictionRequest) -> list[PredictionAnswer]:
    """With one batch, strategy or hook asked for, jobs that differ in it alone are one."""
    if not request.changes_setup:
        return answers
    distinct = {tuple(prediction.step_s for prediction in each.predictions): each for each in answers}
    return list(distinct.values())


def _load(path: Path) -> Run:
    if not path.exists() and path.name == "latest":
        raise BadInput(
            f"predict: {path}: no run exists yet; give a run folder, or create one: scalescope scale"
        )
    if not path.exists():
        raise BadInput(f"predict: {path}: no such run folder; scalescope list shows all runs")
    if not is_run_folder(path):
        raise BadInput(f"predict: {path} is not a run folder; scalescope list shows all runs")
    run = load_run(path)
    if not run.of_status("ok"):
        raise BadInput(_with_damage(f"predict: {path} has no successful launch", run))
    return run


def _with_damage(message: str, run: Run) -> str:
    """The message with the first thing that could not be read: it may be what is missing."""
    return f"{message} ({run.warnings[0]})" if run.warnings else message
